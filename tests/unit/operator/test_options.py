"""Flags and environment."""

import json

import pytest

from gymtrain_operator.lease import LeaseTimes
from gymtrain_operator.manifests.scrapers import Scrapers
from gymtrain_operator.options import parse


def test_the_environment_stands_in_for_flags() -> None:
    env = {"GYMTRAIN_NAMESPACES": "a, b,a", "GYMTRAIN_IMAGE_GYM": "gym:env", "GYMTRAIN_LEADER_ELECT": "true"}
    options = parse([], env)
    assert options.namespaces == ("a", "b")
    assert options.defaults.gym == "gym:env"
    assert options.leader_elect


def test_flags_win_over_the_environment() -> None:
    env = {"GYMTRAIN_NAMESPACES": "a", "GYMTRAIN_IMAGE_GYM": "gym:env", "GYMTRAIN_LEADER_ELECT": "true"}
    options = parse(["--namespace=c", "--namespace=d", "--image-gym=gym:flag", "--no-leader-elect"], env)
    assert options.namespaces == ("c", "d")
    assert options.defaults.gym == "gym:flag"
    assert not options.leader_elect


@pytest.mark.parametrize("name", ["user-namespaces", "image-volumes"])
def test_what_a_cluster_has_is_for_somebody_to_say(name: str) -> None:
    variable, field = f"GYMTRAIN_{name.replace('-', '_').upper()}", name.replace("-", "_")

    def has(arguments: list[str], environment: dict[str, str]) -> bool:
        return bool(getattr(parse(arguments, environment).defaults, field))

    assert not has([], {})
    assert has([], {variable: "1"})
    assert has([f"--{name}"], {})
    assert not has([f"--no-{name}"], {variable: "1"})


def test_what_sandboxes_may_ask_for_has_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    most = "cpu=0.5,memory=32Gi,ephemeral-storage=100G"
    assert parse([f"--sandbox-max-resources={most}"], {}).defaults.sandbox_max_resources == most
    assert parse([], {}).defaults.sandbox_max_resources == ""
    with pytest.raises(SystemExit):
        parse(["--sandbox-max-resources=memory=lots"], {})
    assert "must be as cpu=8" in capsys.readouterr().err


def test_namespaces_have_names_or_labels(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--namespace-selector=team in (a, b)"], {}).namespace_selector == "team in (a, b)"
    assert parse([], {"GYMTRAIN_NAMESPACE_SELECTOR": "canary"}).namespace_selector == "canary"
    with pytest.raises(SystemExit):
        parse(["--namespace=a", "--namespace-selector=canary"], {})
    assert "give one of them" in capsys.readouterr().err


def test_without_namespaces_all_are_looked_after() -> None:
    assert parse([], {}).namespaces == ()


@pytest.mark.parametrize("part", ["inference", "trainer"])
def test_the_gpu_image_is_the_common_one_unless_it_is_named(part: str) -> None:
    def gpu_image(arguments: list[str], environment: dict[str, str]) -> str:
        return str(getattr(parse(arguments, environment).defaults, f"{part}_gpu"))

    common, own = f"--image-{part}=i", f"--image-{part}-gpu=g"
    assert gpu_image([common], {}) == "i"
    assert gpu_image([common, own], {}) == "g"
    assert gpu_image([common], {f"GYMTRAIN_IMAGE_{part.upper()}_GPU": "e"}) == "e"


def test_the_gateways_image_can_be_named() -> None:
    assert parse([], {}).defaults.gateway == "gymtrain/gateway:dev"
    assert parse([], {"GYMTRAIN_IMAGE_GATEWAY": "g:env"}).defaults.gateway == "g:env"
    assert parse(["--image-gateway=g:flag"], {"GYMTRAIN_IMAGE_GATEWAY": "g:env"}).defaults.gateway == "g:flag"


PEER = '{"namespaceSelector": {"matchLabels": {"team": "sre"}}, "podSelector": {}}'


def test_scrapers_are_nobody_unless_they_are_named() -> None:
    assert parse([], {}).defaults.scrapers == Scrapers()
    assert parse([], {"GYMTRAIN_SCRAPERS": ""}).defaults.scrapers == Scrapers()
    named = parse([], {"GYMTRAIN_SCRAPERS": f"[{PEER}]", "GYMTRAIN_SCRAPED_ROLES": "gateway"}).defaults.scrapers
    assert named.rule(named.roles) == {"from": [json.loads(PEER)], "ports": [{"port": 8000, "protocol": "TCP"}]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scrapers=monitoring"], "no list of NetworkPolicyPeers: value: Invalid JSON"),
        ([f"--scrapers={PEER}"], "value: Input should be a valid array"),
        (['--scrapers=[{"namespaceSelector": {"matchLabel": {}}}]'], "[0].namespaceSelector.matchLabel: Extra inputs"),
        (['--scrapers=[{"podSelector": {}}]'], "[0]: namespaceSelector or ipBlock is needed"),
        (
            ['--scrapers=[{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]'],
            "[0]: ipBlock stands alone",
        ),
        (["--scraped-roles=trainer,gym"], "pods with role gym have no metrics: choose from trainer, gateway"),
    ],
)
def test_scrapers_that_no_policy_could_have_are_refused_at_the_start(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments, {})
    assert complaint in capsys.readouterr().err


def test_the_clusters_defaults_are_json() -> None:
    assert parse([], {}).defaults.cluster.storage_class_name is None
    given = '{"storageClassName": "fast"}'
    assert parse(["--defaults", given], {}).defaults.cluster.storage_class_name == "fast"
    assert parse([], {"GYMTRAIN_DEFAULTS": given}).defaults.cluster.storage_class_name == "fast"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"tolerations": [{"effect": "Never"}]}', "defaults.tolerations.0.effect: Input should be"),
        ('{"storageClass": "fast"}', "defaults.storageClass: Extra inputs are not permitted"),
        ("{", "--defaults: Expecting property name"),
        ("[]", "--defaults: not an object"),
    ],
)
def test_defaults_that_do_not_fit_end_the_operator_at_once(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--defaults", given], {})
    assert said in capsys.readouterr().err


def test_requests_to_the_api_server_are_limited_as_kubernetes_own_flags_have_it() -> None:
    options = parse([], {})
    assert (options.kube_api_qps, options.kube_api_burst) == (300, 600)
    options = parse(["--kube-api-qps=7.5"], {"GYMTRAIN_KUBE_API_QPS": "9", "GYMTRAIN_KUBE_API_BURST": "20"})
    assert (options.kube_api_qps, options.kube_api_burst) == (7.5, 20)


@pytest.mark.parametrize("value", ["0", "-1", "many", "nan", "inf"])
def test_a_limit_that_lets_nothing_through_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([f"--kube-api-qps={value}"], {})
    assert f"--kube-api-qps: '{value}' is not a number of at least 1" in capsys.readouterr().err


def test_the_times_of_the_lease_are_flags_and_variables() -> None:
    assert parse([], {}).lease_times == LeaseTimes(30, 20.0, 2.0)
    given = parse(
        ["--leader-elect-lease-duration=6", "--leader-elect-renew-deadline=4.5"],
        {"GYMTRAIN_LEADER_ELECT_RENEW_DEADLINE": "3", "GYMTRAIN_LEADER_ELECT_RETRY_PERIOD": "0.5"},
    )
    assert given.lease_times == LeaseTimes(6, 4.5, 0.5)
    assert given.lease_times.margin == 1.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--leader-elect-lease-duration=20"],
            "--leader-elect-lease-duration=20 must be longer than --leader-elect-re",
        ),
        (["--leader-elect-renew-deadline=2"], "--leader-elect-renew-deadline=2, and that longer than"),
        (["--leader-elect-retry-period=0"], "--leader-elect-retry-period=0, which must be above 0"),
        (["--leader-elect-retry-period=nan"], "--leader-elect-retry-period: 'nan' is not a number of at least 0"),
        (["--leader-elect-lease-duration=15s"], "--leader-elect-lease-duration: '15s' is not a number of at least 1"),
        (["--leader-elect-lease-duration=20.5"], "--leader-elect-lease-duration: 20.5 is no whole number"),
    ],
)
def test_times_that_leave_no_time_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments, {})
    assert said in capsys.readouterr().err
