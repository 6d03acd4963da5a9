"""Settings of one home: `$BOX_HOME/config.toml`.

They say what the host offers (kernel, VMM binary, the range of numeric identities), never what a
sandbox wants. It must not look at the host.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from specs.document import Document
from specs.errors import InvalidBoxfile, NotAllowed
from specs.fields import AbsolutePath
from specs.tomltext import parse_toml
from specs.validate import in_order, judge

# setresuid(2) reads 2**32 - 1 as "leave as it is"; the one below is kept free as well
ID_MAX = 4_294_967_293


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise NotAllowed("not an IP address", "write one, as in 192.0.2.53") from None
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        fix = "write the address of a resolver that is not this host, or remove the line"
        raise NotAllowed("the sandboxes cannot reach this address", fix)
    return text


Resolver = Annotated[StrictStr, AfterValidator(_address)]
Id = Annotated[StrictInt, Field(ge=1, le=ID_MAX)]


class Config(BaseModel):
    """Every setting has a default; an absent file is a Config of defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kernel: AbsolutePath | None = Field(
        None, description="A directory with vmlinux and modules/, or a kernel image."
    )
    modules: AbsolutePath | None = Field(
        None, description="Kernel modules, when not beside the kernel."
    )
    qemu: AbsolutePath | None = Field(
        None, description="The QEMU binary. Left out: searched in PATH."
    )
    uid_first: Id = Field(1_879_048_192, description="First numeric identity for strict sandboxes.")
    uid_count: Annotated[StrictInt, Field(ge=1, le=65_536 * 16)] = Field(
        65_536, description="How many numeric identities the range holds."
    )
    standard_uid: Id | None = Field(
        None, description="The unprivileged identity of root's standard sandboxes."
    )
    resolver: Resolver | None = Field(
        None, description="The DNS server for bridged sandboxes. Left out: the host's own."
    )
    kvm_probe_seconds: Annotated[StrictInt, Field(ge=1, le=300)] = Field(
        10,
        description="How long the guest kernel may take to start on KVM before KVM counts as "
        "not working here. Real hardware needs about one second.",
    )
    tag_lookup_minutes: Annotated[StrictFloat, Field(ge=0, le=10_080, allow_inf_nan=False)] = Field(
        60,
        description="How often a registry is asked whether a tag that runs has moved, which is "
        "drift. 0: never.",
    )
    build_step_seconds: Annotated[StrictInt, Field(ge=1, le=604_800)] = Field(
        3600, description="How long one step of a build may take."
    )
    build_disk_mib: Annotated[StrictInt, Field(ge=64, le=1_048_576)] = Field(
        16_384, description="How much the steps of a build together may write, in MiB."
    )
    build_cache_mib: Annotated[StrictInt, Field(ge=0, le=1_073_741_824)] = Field(
        16_384, description="How much of the host's disk finished steps may hold, in MiB."
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _ranges_fit(self) -> Config:
        last = self.uid_first + self.uid_count - 1
        if last > ID_MAX:
            message = f"uid_first + uid_count ends at {last}, beyond {ID_MAX}"
            raise NotAllowed(message, "write a smaller uid_first or uid_count")
        if self.standard_uid is not None and self.uid_first <= self.standard_uid <= last:
            message = "standard_uid lies in the range of the strict sandboxes"
            raise NotAllowed(message, f"write an id outside of {self.uid_first} to {last}")
        return self


def parse_config(data: bytes, file: str) -> Config:
    """The settings in a config.toml; raises InvalidBoxfile with every mistake."""
    document, problems = parse_toml(data, file)
    config, problems = judge(Config, document or Document({}), file, problems)
    if config is None:
        raise InvalidBoxfile.of(in_order(problems))
    return config
