"""ApiVersions: the advertised versions, and the answer to older and newer clients."""

from __future__ import annotations

import struct

from tests.differential import message_trees
from tests.differential.judge import session
from tests.differential.peer import Peer


@session("api_versions")
def advertised(peer: Peer, version: int) -> None:
    peer.ask("api_versions", version, "asked", client_software_name="judge", client_software_version="1.0")
    peer.ask("api_versions", version, "asked again", client_software_name="judge", client_software_version="1.0")


@session("api_versions", versions=(3, 4))
def software_names(peer: Peer, version: int) -> None:
    for name, software in (
        ("", "1"),
        ("judge", ""),
        ("-judge", "1"),
        ("judge ", "1"),
        ("ju/dge", "1"),
        ("judge", "1-"),
    ):
        label = f"{name!r} {software!r}"
        peer.ask("api_versions", version, label, client_software_name=name, client_software_version=software)
    peer.ask("api_versions", version, "dots and dashes", client_software_name="a.b-c", client_software_version="1.0-x")


@session("api_versions", versions=(0,))
def unknown_versions(peer: Peer, version: int) -> None:
    """The broker answers in version 0, so that the client can ask again, and keeps the connection open."""
    for number in (5, 6, 99, 32767, -1):
        frame = struct.pack(">hhih", 18, number, 1, -1) + b"\0"
        peer.raw(f"version {number}", message_trees.framed(frame), api="api_versions", version=version)
