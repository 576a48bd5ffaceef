"""The operator's settings: flags, and an environment variable for each."""

import argparse
import json
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from gymtrain_api.defaults import InvalidDefaultsError
from gymtrain_api.defaults import parse as parse_defaults
from gymtrain_operator.lease import LeaseTimes
from gymtrain_operator.log import LogFormat
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.manifests.scrapers import PORTS, ROLES, Scrapers
from gymtrain_operator.rate_limit import DEFAULT_BURST, DEFAULT_QPS

_MOST = re.compile(r"(cpu|memory|ephemeral-storage)=[0-9]+(\.[0-9]+)?(m|[kMGT]|[KMGT]i)?")


@dataclass(frozen=True)
class Options:
    """Settings of one operator process.

    Attributes:
        namespaces: those to look after; all where empty.
        namespace_selector: labels of those to look after; all where empty. Not with `namespaces`.
        lease_namespace: where the Lease lives, which is the operator's own namespace; None outside of a
            cluster unless it is given.
        kube_api_qps: requests a second to the API server, in the long run.
        kube_api_burst: requests at once after a quiet time.
    """

    namespaces: tuple[str, ...]
    namespace_selector: str
    defaults: Defaults
    port: int
    workers: int
    kube_api_qps: float
    kube_api_burst: int
    leader_elect: bool
    lease_times: LeaseTimes
    lease_namespace: str | None
    identity: str
    log_level: str
    log_format: LogFormat


def parse(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> Options:
    """Reads the options of a command line; the environment stands in for flags that are left out."""
    parser = argparse.ArgumentParser(
        prog="python -m gymtrain_operator",
        description="Runs the operator. Each flag can also be set by the environment variable in brackets.",
    )

    def text(flag: str, variable: str, default: str | None, what: str, choices: tuple[str, ...] | None = None) -> None:
        parser.add_argument(flag, default=env.get(variable) or default, choices=choices, help=f"{what} [{variable}]")

    images = Defaults()
    parser.add_argument(
        "--namespace",
        action="append",
        metavar="NAMESPACE",
        help="namespace to watch; can be repeated; default: all namespaces [GYMTRAIN_NAMESPACES, separated by commas]",
    )
    text(
        "--namespace-selector",
        "GYMTRAIN_NAMESPACE_SELECTOR",
        "",
        "label selector of the namespaces to watch, instead of their names, such as team=research or canary",
    )
    text("--image-gym", "GYMTRAIN_IMAGE_GYM", images.gym, "default image of the Gym servers")
    text("--image-gateway", "GYMTRAIN_IMAGE_GATEWAY", images.gateway, "default image of the gateway")
    text("--image-inference", "GYMTRAIN_IMAGE_INFERENCE", images.inference, "default image of vLLM")
    text("--image-inference-gpu", "GYMTRAIN_IMAGE_INFERENCE_GPU", None, "the same if spec.inference.gpus > 0")
    text("--image-trainer", "GYMTRAIN_IMAGE_TRAINER", images.trainer, "default image of the trainer")
    text("--image-trainer-gpu", "GYMTRAIN_IMAGE_TRAINER_GPU", None, "the same if spec.trainer.gpus > 0")
    text("--image-broker", "GYMTRAIN_IMAGE_BROKER", images.broker, "image of the sandbox broker")
    text("--image-sandbox", "GYMTRAIN_IMAGE_SANDBOX", images.sandbox, "image with the daemon of the sandboxes")
    text(
        "--image-pull-policy",
        "GYMTRAIN_IMAGE_PULL_POLICY",
        images.pull_policy,
        "imagePullPolicy of the runs' containers",
        ("Always", "IfNotPresent", "Never"),
    )
    parser.add_argument(
        "--user-namespaces",
        action=argparse.BooleanOptionalAction,
        default=_is_on(env.get("GYMTRAIN_USER_NAMESPACES")),
        help="the cluster's nodes support user namespaces, so each root sandbox gets one [GYMTRAIN_USER_NAMESPACES]",
    )
    parser.add_argument(
        "--image-volumes",
        action=argparse.BooleanOptionalAction,
        default=_is_on(env.get("GYMTRAIN_IMAGE_VOLUMES")),
        help="the cluster supports image volumes, so sandboxes mount their daemon [GYMTRAIN_IMAGE_VOLUMES]",
    )
    text(
        "--scrapers",
        "GYMTRAIN_SCRAPERS",
        "[]",
        "who may read metrics of runs' pods: JSON of a list of NetworkPolicyPeers",
    )
    text(
        "--scraped-roles",
        "GYMTRAIN_SCRAPED_ROLES",
        ",".join(ROLES),
        f"of which pods, by role, separated by commas: {', '.join(PORTS)}",
    )
    text(
        "--defaults",
        "GYMTRAIN_DEFAULTS",
        "{}",
        "JSON with defaults for the runs of all namespaces, as in a GymTrainingDefaults' spec",
    )
    text(
        "--sandbox-max-resources",
        "GYMTRAIN_SANDBOX_MAX_RESOURCES",
        "",
        "the most that a sandbox may ask for, such as cpu=8,memory=32Gi,ephemeral-storage=100Gi",
    )
    parser.add_argument(
        "--kueue",
        action=argparse.BooleanOptionalAction,
        default=_is_on(env.get("GYMTRAIN_KUEUE")),
        help="the operator has the right to use Kueue's Workloads, so runs can wait in its queues [GYMTRAIN_KUEUE]",
    )
    text(
        "--gang-scheduler",
        "GYMTRAIN_GANG_SCHEDULER",
        "",
        "name of a scheduler with the coscheduling plugin: it places a run's trainer and vLLM together or not at all",
    )
    text("--port", "GYMTRAIN_PORT", "8080", "port of /metrics, /healthz and /readyz")
    text(
        "--workers",
        "GYMTRAIN_WORKERS",
        "8",
        "runs that are looked at in full at the same time; polls of trainers come on top",
    )
    text("--kube-api-qps", "GYMTRAIN_KUBE_API_QPS", str(DEFAULT_QPS), "requests a second to the API server")
    text("--kube-api-burst", "GYMTRAIN_KUBE_API_BURST", str(DEFAULT_BURST), "the same at once, after a quiet time")
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=_is_on(env.get("GYMTRAIN_LEADER_ELECT")),
        help="with several replicas, only the one that holds the Lease acts [GYMTRAIN_LEADER_ELECT]",
    )
    times = LeaseTimes()
    text(
        "--leader-elect-lease-duration",
        "GYMTRAIN_LEADER_ELECT_LEASE_DURATION",
        str(times.duration),
        "whole seconds after which a Lease that isn't renewed may be taken",
    )
    text(
        "--leader-elect-renew-deadline",
        "GYMTRAIN_LEADER_ELECT_RENEW_DEADLINE",
        f"{times.renew_deadline:g}",
        "seconds that the leader acts without a renewal: then it writes no more, and ends",
    )
    text(
        "--leader-elect-retry-period",
        "GYMTRAIN_LEADER_ELECT_RETRY_PERIOD",
        f"{times.retry_period:g}",
        "seconds between two tries to renew the Lease, or to get it",
    )
    text("--lease-namespace", "GYMTRAIN_POD_NAMESPACE", None, "the operator's own namespace")
    text("--identity", "GYMTRAIN_POD_NAME", socket.gethostname(), "name of this replica in the Lease")
    text("--log-level", "GYMTRAIN_LOG_LEVEL", "info", "log level", ("debug", "info", "warning", "error"))
    text("--log-format", "GYMTRAIN_LOG_FORMAT", "json", "format of the log", ("json", "console"))

    found = parser.parse_args(argv)
    try:
        scrapers = Scrapers.parse(found.scrapers, found.scraped_roles.split(","))
    except ValueError as error:
        parser.error(f"--scrapers, --scraped-roles: {error}")
    try:
        document = json.loads(found.defaults)
        if not isinstance(document, dict):
            parser.error("--defaults: not an object")
        cluster = parse_defaults(document, "defaults")
    except (InvalidDefaultsError, json.JSONDecodeError) as error:
        parser.error(f"--defaults: {error}")
    given = found.namespace or env.get("GYMTRAIN_NAMESPACES", "").split(",")
    namespaces = tuple(dict.fromkeys(name.strip() for name in given if name.strip()))
    if namespaces and found.namespace_selector:
        parser.error("--namespace and --namespace-selector: give one of them")
    return Options(
        namespaces=namespaces,
        namespace_selector=found.namespace_selector,
        defaults=Defaults(
            gym=found.image_gym,
            gateway=found.image_gateway,
            inference=found.image_inference,
            inference_gpu=found.image_inference_gpu or found.image_inference,
            trainer=found.image_trainer,
            trainer_gpu=found.image_trainer_gpu or found.image_trainer,
            broker=found.image_broker,
            sandbox=found.image_sandbox,
            pull_policy=found.image_pull_policy,
            user_namespaces=found.user_namespaces,
            image_volumes=found.image_volumes,
            sandbox_max_resources=_max_resources(parser, found.sandbox_max_resources),
            kueue=found.kueue,
            gang_scheduler=found.gang_scheduler,
            operator_namespace=found.lease_namespace,
            scrapers=scrapers,
            cluster=cluster,
        ),
        port=int(found.port),
        workers=max(1, int(found.workers)),
        kube_api_qps=_at_least(parser, "--kube-api-qps", found.kube_api_qps, 1.0),
        kube_api_burst=int(_at_least(parser, "--kube-api-burst", found.kube_api_burst, 1.0)),
        leader_elect=found.leader_elect,
        lease_times=_lease_times(parser, found),
        lease_namespace=found.lease_namespace,
        identity=found.identity,
        log_level=found.log_level,
        log_format=cast(Literal["json", "console"], found.log_format),
    )


def _at_least(parser: argparse.ArgumentParser, flag: str, value: str, least: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        parser.error(f"argument {flag}: {value!r} is not a number of at least {least:g}")
    return number


def _lease_times(parser: argparse.ArgumentParser, found: argparse.Namespace) -> LeaseTimes:
    """Checks the times. `parser` ends the process where they can't be had."""
    duration = _at_least(parser, "--leader-elect-lease-duration", found.leader_elect_lease_duration, 1.0)
    if not duration.is_integer():
        parser.error(f"argument --leader-elect-lease-duration: {duration:g} is no whole number, as a Lease holds")
    deadline = _at_least(parser, "--leader-elect-renew-deadline", found.leader_elect_renew_deadline, 0.0)
    retry = _at_least(parser, "--leader-elect-retry-period", found.leader_elect_retry_period, 0.0)
    try:
        return LeaseTimes(int(duration), deadline, retry)
    except ValueError as error:
        parser.error(str(error))


def _is_on(value: str | None) -> bool:
    return (value or "").lower() in {"1", "true", "yes"}


def _max_resources(parser: argparse.ArgumentParser, text: str) -> str:
    """Checks the form, which brokers would fail on. `parser` ends the process where it is wrong."""
    if text and not all(_MOST.fullmatch(part) for part in text.split(",")):
        parser.error(f"--sandbox-max-resources={text}: must be as cpu=8,memory=32Gi,ephemeral-storage=100Gi")
    return text
