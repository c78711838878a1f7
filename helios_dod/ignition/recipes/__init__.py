"""Recipes: from an opened checkpoint to programs, contract and weights, each for a family."""

from collections.abc import Callable
from dataclasses import replace

from helios_dod.ignition.checkpoints.checkpoint import Checkpoint
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.prepared import PreparationError, Prepared
from helios_dod.ignition.recipes import decoder, gpt2
from helios_dod.ignition.recipes.syntaxes import detect

Recipe = Callable[[Checkpoint, Options], Prepared]
RECIPES: dict[str, tuple[tuple[str, ...], Recipe]] = {  # name -> (architectures, recipe)
    decoder.NAME: (decoder.ARCHITECTURES, decoder.prepare_decoder),
    gpt2.NAME: (gpt2.ARCHITECTURES, gpt2.prepare_gpt2),
}


def recipe_for(checkpoint: Checkpoint) -> str:
    """Name of the recipe for a checkpoint's architecture."""
    architecture = checkpoint.config.architecture
    for name, (architectures, _) in RECIPES.items():
        if architecture in architectures:
            return name
    known = sorted(name for architectures, _ in RECIPES.values() for name in architectures)
    raise PreparationError(
        f"checkpoint {checkpoint.name}: architecture: expected one of {', '.join(known)}, "
        f"got {architecture}"
    )


def prepare(checkpoint: Checkpoint, options: Options, recipe: str | None = None) -> Prepared:
    """Prepares a checkpoint by a recipe's name, or by its architecture."""
    chosen = recipe or recipe_for(checkpoint)
    if chosen not in RECIPES:
        raise PreparationError(f"recipe: expected one of {', '.join(RECIPES)}, got {chosen}")
    architectures, build = RECIPES[chosen]
    if checkpoint.config.architecture not in architectures:
        raise PreparationError(
            f"checkpoint {checkpoint.name}: architecture: recipe {chosen} expects one of "
            f"{', '.join(architectures)}, got {checkpoint.config.architecture}"
        )
    output = detect(
        checkpoint.text.chat_template, options.tool_syntax, options.reasoning_syntax)
    return build(checkpoint, replace(options, output=output))
