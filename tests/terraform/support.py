"""Terraform with the AWS provider, if both are available: from the registry, or from a mirror on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support import s3_servers
from tests.support.node import ROOT

MODULES = ROOT / "terraform"
DEV = MODULES / "environments" / "dev"
#: Folders that may have a mirror of providers: Terraform's own, and those that administrators create.
_PLACES = ("/usr/share", "/usr/local/share", "/opt", "~/.local/share/terraform", "~/.terraform.d")
_PROVIDER = "registry.terraform.io/hashicorp/aws"


def terraform_missing() -> str | None:
    """Why Terraform cannot run here, or None."""
    return None if shutil.which("terraform") else "terraform is not installed here"


@cache
def mirror() -> Path | None:
    """A folder for `terraform init -plugin-dir`, if there is one."""
    for place in _PLACES:
        for found in sorted(Path(place).expanduser().glob(f"*/{_PROVIDER}")):
            return found.parents[2]
    return None


@dataclass(frozen=True)
class Terraform:
    """`terraform` in the dev environment, its data and state kept in `work`."""

    work: Path
    endpoint: str | None = None

    def run(self, *words: str, check: bool = True) -> str:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TF_")},
            **s3_servers.ENVIRONMENT,
            "TF_DATA_DIR": str(self.work / "data"),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
        }
        command = ["terraform", f"-chdir={DEV}", *words, "-no-color"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert not check or done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def init(self) -> str | None:
        """The reason why the provider is not available here, or None."""
        found = mirror()
        words: Sequence[str] = () if found is None else (f"-plugin-dir={found}",)
        said = self.run("init", "-backend=false", "-input=false", *words, check=False)
        if "successfully initialized" in said:
            return None
        return f"the provider {_PROVIDER} is neither in reach nor on this machine: {said.strip()[-300:]}"

    def variables(self, bucket: str, package: Path) -> list[str]:
        values = {"bucket": bucket, "package": str(package), "endpoint": self.endpoint}
        return [f"-var={name}={value}" for name, value in values.items()] + [f"-state={self.work / 'state'}"]
