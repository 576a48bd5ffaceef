"""Who may read the metrics of runs from outside of them, and of which pods."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from gymtrain_api import wiring
from gymtrain_api.labels import Role

PORTS: Mapping[Role, int] = {
    Role.TRAINER: wiring.TRAINER_PORT,
    Role.GATEWAY: wiring.GATEWAY_PORT,
    Role.BROKER: wiring.BROKER_PORT,
    Role.INFERENCE: wiring.INFERENCE_PORT,
}
"""Pods that have metrics, and the port at which `GET /metrics` answers."""

ROLES = (Role.TRAINER, Role.GATEWAY, Role.BROKER)
"""Those that are read unless somebody says otherwise: whoever reaches vLLM can pause it, or give it other weights."""


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


class _Expression(_Part):
    key: str
    operator: str = Field(pattern="^(In|NotIn|Exists|DoesNotExist)$")
    values: list[str] | None = None


class _Selector(_Part):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Expression] | None = None


class _Block(_Part):
    cidr: str
    except_: list[str] | None = Field(None, alias="except")


class _Peer(_Part):
    """NetworkPolicyPeer."""

    namespace_selector: _Selector | None = None
    pod_selector: _Selector | None = None
    ip_block: _Block | None = None

    @model_validator(mode="after")
    def _names_somebody(self) -> Self:
        if self.ip_block is not None and (self.namespace_selector or self.pod_selector):
            raise ValueError("ipBlock stands alone: put selectors into an entry of their own")
        if self.ip_block is None and self.namespace_selector is None:
            # Alone, a podSelector means pods of the run's own namespace, which is another one for each run.
            raise ValueError("namespaceSelector or ipBlock is needed: where do the scrapers run?")
        return self


class _Peers(RootModel[list[_Peer]]):
    pass


@dataclass(frozen=True)
class Scrapers:
    """Who scrapes runs.

    Attributes:
        peers: JSON of a list of NetworkPolicyPeers; `[]` for nobody.
        roles: of the pods that they may reach.
    """

    peers: str = "[]"
    roles: tuple[Role, ...] = ROLES

    @classmethod
    def parse(cls, peers: str, roles: Iterable[str]) -> Self:
        """Reads the two settings.

        Raises:
            ValueError: the peers are no JSON, or no list of NetworkPolicyPeers; or pods of a role have no metrics.
        """
        try:
            document = _Peers.model_validate_json(peers or "[]", strict=True)
        except ValidationError as error:
            where = "; ".join(
                f"{_place(one['loc'])}: {one['msg'].removeprefix('Value error, ')}"
                for one in error.errors(include_url=False)
            )
            raise ValueError(f"no list of NetworkPolicyPeers: {where}") from None
        wanted = dict.fromkeys(role.strip() for role in roles if role.strip())
        unknown = [role for role in wanted if role not in PORTS]
        if unknown:
            raise ValueError(f"pods with role {', '.join(unknown)} have no metrics: choose from {', '.join(PORTS)}")
        text = document.model_dump_json(by_alias=True, exclude_none=True)
        return cls(text, tuple(Role(role) for role in wanted))

    def rule(self, roles: Iterable[Role]) -> dict[str, Any] | None:
        """Returns the rule that lets the scrapers in at the ports of metrics; None where it would let nobody in."""
        peers = json.loads(self.peers)
        ports = sorted({PORTS[role] for role in roles})
        if not peers or not ports:
            return None
        return {"from": peers, "ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def _place(location: Iterable[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".") or "value"
