"""What the pods of a run get so that rollouts are traced."""

from dataclasses import replace
from typing import Any

import pytest

from gymtrain_api import labels
from gymtrain_api.defaults import AppliedDefaults, parse, with_defaults
from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_operator.reconcile.observation import NamespaceDefaults
from tests.support.specs import smallest_run
from tests.support.world import DEFAULTS, World

COLLECTOR = "http://collector.observability.svc:4318"
SERVERS = {"gym", "gateway", "inference", "trainer", "broker"}


def environments(world: World) -> dict[str, dict[str, Any]]:
    """OpenTelemetry's variables in the main container, by the service's name; `{}` for a pod without."""
    found: dict[str, dict[str, Any]] = {}
    for kind in ("Deployment", "Job"):
        for manifest in world.to_servers().objects.get(kind, {}).values():
            template = manifest["spec"]["template"]
            own = {
                one["name"]: one.get("value", one.get("valueFrom"))
                for one in template["spec"]["containers"][0]["env"]
                if one["name"].startswith("OTEL_")
            }
            found[own.get("OTEL_SERVICE_NAME", template["metadata"]["labels"][labels.ROLE])] = own
    return found


def world_of(cluster: dict[str, Any] | None = None, namespace: dict[str, Any] | None = None, **blocks: Any) -> World:
    world = World(sandboxes={}, **blocks)
    world.defaults = replace(DEFAULTS, cluster=parse(cluster or {}, "defaults"))
    world.seen["namespace"] = NamespaceDefaults(parse(namespace or {}, "spec"))
    return world


def test_a_run_that_asks_for_none_has_no_variable_of_it() -> None:
    found = environments(world_of())
    assert set(found) == SERVERS
    assert not any(found.values())


def test_only_the_gateway_knows_the_collector_and_its_credentials() -> None:
    tracing = {"endpoint": COLLECTOR, "headersSecret": {"name": "otlp", "key": "headers"}}
    found = environments(world_of(tracing=tracing))
    gateway = found.pop("gymtrain-gateway")
    assert gateway["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == f"{COLLECTOR}/v1/traces"
    assert gateway["OTEL_EXPORTER_OTLP_HEADERS"] == {"secretKeyRef": {"name": "otlp", "key": "headers"}}
    others = {one["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] for one in found.values()}
    assert others == {"http://run-gateway-pods:8000/v1/traces"}
    assert not any("OTEL_EXPORTER_OTLP_HEADERS" in one for one in found.values())


def test_only_the_trainer_begins_traces() -> None:
    found = environments(world_of(tracing={"endpoint": COLLECTOR, "samplingRatePerMillion": 2500}))
    trainer = found.pop("gymtrain-trainer")
    assert (trainer["OTEL_TRACES_SAMPLER"], trainer["OTEL_TRACES_SAMPLER_ARG"]) == (
        "parentbased_traceidratio",
        "0.002500",
    )
    assert {one["OTEL_TRACES_SAMPLER"] for one in found.values()} == {"parentbased_always_off"}
    assert not any("OTEL_TRACES_SAMPLER_ARG" in one for one in found.values())


def test_each_gym_server_is_a_service_of_its_own() -> None:
    found = environments(world_of(tracing={"endpoint": COLLECTOR}))
    gym = {name for name in found if name.startswith("gymtrain-gym-")}
    assert {"gymtrain-gym-policy_model", "gymtrain-gym-head_server"} <= gym
    assert set(found) - gym == {f"gymtrain-{role}" for role in SERVERS - {"gym"}}


@pytest.mark.parametrize("endpoint", [COLLECTOR, f"{COLLECTOR}/", f"{COLLECTOR}/v1/traces"])
def test_the_path_is_added_once(endpoint: str) -> None:
    gateway = environments(world_of(tracing={"endpoint": endpoint}))["gymtrain-gateway"]
    assert gateway["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == f"{COLLECTOR}/v1/traces"


def test_defaults_of_cluster_and_namespace_trace_runs_that_say_nothing() -> None:
    found = environments(
        world_of({"tracing": {"endpoint": COLLECTOR}}, {"tracing": {"samplingRatePerMillion": 1_000_000}})
    )
    assert found["gymtrain-gateway"]["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == f"{COLLECTOR}/v1/traces"
    assert found["gymtrain-trainer"]["OTEL_TRACES_SAMPLER_ARG"] == "1.000000"


def test_people_are_shown_what_the_defaults_trace() -> None:
    spec = GymTrainingRunSpec.model_validate(smallest_run()["spec"])
    traced = AppliedDefaults.model_validate({"tracing": {"endpoint": COLLECTOR}})
    shown = with_defaults(spec, traced).tracing
    assert shown is not None
    assert (shown.endpoint, shown.sampling_rate_per_million) == (COLLECTOR, 10_000)
    assert with_defaults(spec, AppliedDefaults()).tracing is None


@pytest.mark.parametrize(
    ("cluster", "blocks"),
    [
        ({"samplingRatePerMillion": 1000}, {}),  # of no collector
        ({"endpoint": COLLECTOR}, {"tracing": {"endpoint": COLLECTOR, "samplingRatePerMillion": 0}}),
    ],
)
def test_a_rate_of_zero_turns_it_off_and_a_rate_alone_does_not_turn_it_on(
    cluster: dict[str, Any], blocks: dict[str, Any]
) -> None:
    assert set(environments(world_of({"tracing": cluster}, **blocks))) == SERVERS


def test_no_network_policy_is_opened_for_it() -> None:
    plain, traced = world_of().to_servers(), world_of(tracing={"endpoint": COLLECTOR}).to_servers()
    specs = [{n: p["spec"] for n, p in one.objects["NetworkPolicy"].items()} for one in (plain, traced)]
    assert specs[0] == specs[1]


def test_spans_do_not_go_to_the_gateway_by_way_of_a_proxy() -> None:
    world = world_of({"proxy": {"http": "http://proxy:3128"}}, tracing={"endpoint": COLLECTOR}).to_servers()
    (gateway,) = (one for name, one in world.objects["Deployment"].items() if name == "run-gateway")
    env = {one["name"]: one.get("value") for one in gateway["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert "run-gateway-pods" in env["NO_PROXY"].split(",")
