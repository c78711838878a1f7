"""What may lie in the place of a core's file: links, pipes, folders, others; and acceptances."""

import json
import os
import shutil
import socket
from contextlib import closing, suppress

from helios_dod.cores.acceptance import authorize, refusal
from helios_dod.cores.errors import CoreError
from helios_dod.cores.layout import CORE_FILE, LOGICAL_FILE
from helios_dod.cores.reader import open_core

ACCEPTANCE = "acceptance.json"
VALUES = (None, 0, -1, "", "x", [], {}, [[]] * 50, "00", 2**70, [{}], {"accepted": {}}, True)


class Other:
    """Makes something that is no plain file of its bytes. leads: to those bytes inside the core,
    by a name that may be a link."""

    def __init__(self, make, leads=False):
        self.make, self.leads = make, leads


def bind(path):
    here = os.getcwd()
    os.chdir(path.parent)  # an address is short
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def link_to(target):
    return lambda path: path.symlink_to(target)


def in_place(honest, name, rng):
    """Something else in the place of that file."""
    beside = honest.path / "beside"
    inside = f"{'../' * name.count('/')}beside"
    return rng.choice((
        Other(os.mkfifo), Other(os.mkdir), Other(bind), Other(sparse), Other(lambda path: None),
        Other(link_to("nowhere")), Other(lambda path: path.symlink_to(path.name)),
        Other(link_to("/dev/zero")), Other(link_to(honest.outside / "victim")),
        Other(link_to(honest.outside / name)), Other(link_to(honest.path)),
        Other(link_to(os.path.relpath(honest.path / rng.choice(honest.names),
                                      (honest.path / name).parent))),
        Other(lambda path: (shutil.copy(honest.outside / name, beside), path.symlink_to(inside)),
              leads=name not in (CORE_FILE, LOGICAL_FILE))))


def put(path, data):
    """Writes bytes, or makes what is no plain file."""
    if isinstance(data, Other):
        path.unlink()
        data.make(path)
    else:
        path.write_bytes(data)


def put_back(honest, name):
    """The honest file, whatever lies there."""
    path = honest.path / name
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    with suppress(FileNotFoundError):
        path.unlink()
    with suppress(FileNotFoundError):
        (honest.path / "beside").unlink()
    path.write_bytes(honest.files[name])


def change_record(data, rng):
    """Another acceptance: of another shape, with more users, or not of this one."""
    document = json.loads(data)
    users, kind = document["users"], rng.randrange(6)
    if kind == 0:
        rng.choice((document, users[0], users[0]["accepted"]))[rng.choice(
            ("users", "accepted", "signature", "namespace", "public_key"))] = rng.choice(VALUES)
    elif kind == 1:
        users.extend([users[0]] * rng.choice((1, 63, 64, 500, 5000)))
    elif kind == 2:
        document = rng.choice((*VALUES, users[0], users))
    elif kind == 3:
        return b"[" * rng.choice((10, 999, 100_000)) + data
    elif kind == 4:
        return data + b" " * rng.choice((1, 1 << 20, 2 << 20))
    else:
        users[0]["accepted"]["license_text"] = "x" * rng.choice((1, 500_000, 1 << 20))
    return json.dumps(document).encode()


def check_acceptance(honest):
    """What is wrong with how a core's acceptance is read and given again, or None."""
    core, path = open_core(honest.path), honest.path / ACCEPTANCE
    if refusal(core) is None:
        document = json.loads(path.read_bytes())
        if not any(part["accepted"] == honest.record["accepted"]
                   and part["signature"].lower() == honest.record["signature"]
                   for part in document.get("users", [document])):
            return "accepted without this user's record"
    try:
        authorize(core, core.namespace)
        problem = None if refusal(core) is None else "accepted, and not readable"
    except CoreError as error:  # a folder lies in its place
        problem = None if str(error) else "refused without a name"
    changed = (honest.outside / "victim").read_bytes() != b"mine"
    return "wrote through a link" if changed else problem
