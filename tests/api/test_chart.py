"""The chart: rendered by helm, judged by a real API server."""

import json

import pytest
import yaml

from gymtrain_api import labels
from gymtrain_api.labels import Role
from gymtrain_api.runs import parse_spec
from gymtrain_api.sandboxes import BACKENDS, SandboxBackend
from gymtrain_kube import kubeconfig
from gymtrain_operator.event_poster import EventPoster
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.lease import LeaseTimes
from gymtrain_operator.manifests.broker import broker_identity
from gymtrain_operator.manifests.context import RunContext
from gymtrain_operator.manifests.network import network_policies
from gymtrain_operator.manifests.scrapers import ROLES, Scrapers
from gymtrain_operator.options import parse
from gymtrain_operator.reconcile.events import Event
from tests.support.apiserver import ApiServer
from tests.support.chart import CHART, Manifest, helm, render
from tests.support.kubectl import Kubectl, KubectlError
from tests.support.specs import smallest_run


def _of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def _rules(manifests: list[Manifest]) -> list[Manifest]:
    """The operator's, in all namespaces."""
    (role,) = [r for r in _of_kind(manifests, "ClusterRole") if r["metadata"]["name"] == "gymtrain-operator"]
    found: list[Manifest] = role["rules"]
    return found


def _pod(manifests: list[Manifest]) -> Manifest:
    (deployment,) = _of_kind(manifests, "Deployment")
    template: Manifest = deployment["spec"]["template"]
    return template


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


_SETTINGS = [
    "replicas=1",
    "replicas=2",
    "watchNamespaces={NAMESPACE}",
    "namespaceSelector.matchLabels.team=a",
    "crds.install=false",
]


@pytest.mark.parametrize("value", _SETTINGS)
def test_the_api_server_accepts_the_manifests(kubectl: Kubectl, value: str) -> None:
    manifests = render(value.replace("NAMESPACE", kubectl.namespace), namespace=kubectl.namespace)
    kubectl.run(
        "apply", "--dry-run=server", "--validate=strict", "--force-conflicts", "--server-side", "-f", "-",
        stdin="\n---\n".join(map(json.dumps, manifests)),
    )  # fmt: skip


def test_the_pod_is_admitted_under_the_restricted_standard(kubectl: Kubectl) -> None:
    kubectl.run("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
    pod = _pod(render(namespace=kubectl.namespace))
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": pod["spec"]})


def test_the_root_file_system_is_read_only() -> None:
    (container,) = _pod(render())["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_namespaced_mode_has_rights_in_its_namespaces_only() -> None:
    manifests = render("watchNamespaces={team-a,team-b}", "rbac.aggregateToUserRoles=false")
    assert _of_kind(manifests, "ClusterRole") == []
    assert _of_kind(manifests, "ClusterRoleBinding") == []
    bindings = {b["metadata"]["namespace"]: b["roleRef"]["name"] for b in _of_kind(manifests, "RoleBinding")}
    assert bindings == {
        "team-a": "gymtrain-operator",
        "team-b": "gymtrain-operator",
        "system": "gymtrain-operator-lease",
    }
    arguments = _pod(manifests)["spec"]["containers"][0]["args"]
    assert [a for a in arguments if a.startswith("--namespace")] == ["--namespace=team-a", "--namespace=team-b"]


def test_both_modes_grant_the_same_rules() -> None:
    roles = _of_kind(render("watchNamespaces={team}"), "Role")
    (role,) = [r for r in roles if r["metadata"]["namespace"] == "team"]
    assert role["rules"] == _rules(render())


def test_a_selector_of_namespaces_is_passed_on_as_kubectl_writes_it_and_gives_the_right_to_list_them() -> None:
    rules = [
        "namespaceSelector.matchLabels.a=one",
        "namespaceSelector.matchExpressions[0].key=b",
        "namespaceSelector.matchExpressions[0].operator=NotIn",
        "namespaceSelector.matchExpressions[0].values={x,y}",
        "namespaceSelector.matchExpressions[1].key=c",
        "namespaceSelector.matchExpressions[1].operator=Exists",
        "namespaceSelector.matchExpressions[2].key=d",
        "namespaceSelector.matchExpressions[2].operator=DoesNotExist",
    ]
    manifests = render(*rules)
    arguments = _pod(manifests)["spec"]["containers"][0]["args"]
    assert "--namespace-selector=a=one,b notin (x,y),c,!d" in arguments

    listing = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]}
    assert listing in _rules(manifests)
    assert listing not in _rules(render())


def test_who_places_pods_together_gives_the_right_to_make_groups() -> None:
    manifests = render("gangScheduling.schedulerName=gangs")
    assert "--gang-scheduler=gangs" in _pod(manifests)["spec"]["containers"][0]["args"]
    verbs = ["get", "list", "create", "patch", "delete"]
    rule = {"apiGroups": ["scheduling.x-k8s.io"], "resources": ["podgroups"], "verbs": verbs}
    assert rule in _rules(manifests)
    assert rule not in _rules(render())


@pytest.fixture
def account(kubectl: Kubectl, api_server: ApiServer) -> str:
    """The user name of the operator, with the chart's rights."""
    manifests = render(namespace=kubectl.namespace, release=kubectl.namespace)
    kubectl.apply(*(m for m in manifests if m["kind"].endswith(("Role", "Binding", "ServiceAccount"))))
    return f"system:serviceaccount:{kubectl.namespace}:{kubectl.namespace}-gymtrain-operator"


def test_the_operator_may_read_no_secrets_and_write_no_runs(kubectl: Kubectl, account: str) -> None:

    def may(verb: str, resource: str, subresource: str = "") -> bool:
        extra = [f"--subresource={subresource}"] if subresource else []
        answer = kubectl.run("auth", "can-i", verb, resource, "--as", account, *extra, check=False)
        return answer.strip() == "yes"

    assert may("watch", "gymtrainingruns.gymtrain.dev")
    assert may("update", "gymtrainingruns.gymtrain.dev", "status")
    assert may("create", "pods")
    assert not may("get", "secrets")
    assert not may("list", "nodes")
    assert not may("update", "gymtrainingruns.gymtrain.dev")
    assert not may("create", "pods", "exec")
    for verb in ("update", "patch", "delete", "bind", "escalate"):
        assert not may(verb, "roles.rbac.authorization.k8s.io")


def test_the_operator_gives_nobody_a_right_that_it_lacks(kubectl: Kubectl, account: str) -> None:
    """It makes a Role for each broker, which the API server lets it do with its own rights only."""

    def make(name: str, resource: str, verb: str) -> None:
        kubectl.run("create", "role", name, f"--resource={resource}", f"--verb={verb}", "--as", account)

    make("pods", "pods", "get")
    for resource, verb in (("secrets", "get"), ("pods", "update"), ("nodes", "list")):
        with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently held"):
            make("more", resource, verb)
    kubectl.run(
        "create",
        "rolebinding",
        "pods",
        "--role=pods",
        f"--serviceaccount={account.removeprefix('system:serviceaccount:')}",
        "--as",
        account,
    )
    with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently held"):
        kubectl.run("create", "rolebinding", "all", "--clusterrole=system:node", "--user=somebody", "--as", account)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_operator_can_give_each_broker_its_rights(kubectl: Kubectl, account: str, backend: SandboxBackend) -> None:
    spec = parse_spec(smallest_run(sandboxes={})["spec"])
    run = RunContext("run", kubectl.namespace, "11111111-2222-3333-4444-555555555555", spec)
    for manifest in broker_identity(run, backend):
        kubectl.run("create", "-f", "-", "--as", account, stdin=json.dumps(manifest))


async def test_an_event_that_repeats_is_one_object_and_needs_no_right_to_read(
    kubectl: Kubectl, api_server: ApiServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl.apply(smallest_run("told"))
    run = kubectl.get("gtr", "told")
    token = kubectl.run("create", "token", account.rpartition(":")[2]).strip()
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig_for("events", token)))
    client = KubeClient(kubeconfig.load())
    try:
        poster = EventPoster(client)
        for number in range(3):
            await poster.post(run, Event("Warning", "KLHigh", f"KL 0.{number}", "Healthy"), 1_800_000_000.0 + number)
    finally:
        await client.close()
    (event,) = (one for one in kubectl.list("events") if one["involvedObject"]["name"] == "told")
    assert (event["count"], event["message"], event["firstTimestamp"], event["lastTimestamp"]) == (
        3,
        "KL 0.2",
        "2027-01-15T08:00:00Z",
        "2027-01-15T08:00:02Z",
    )
    assert "(x3 over " in kubectl.run("describe", "gtr", "told")


def test_images_take_registry_and_tag_unless_they_carry_one() -> None:
    (container,) = _pod(
        render(
            "imageRegistry=r.example.com:5000/", "images.tag=v2", "image.tag=v1", "images.gym=mine/gym:3",
            "images.inferenceGpu=vllm@sha256:0", "images.trainerGpu=gymtrain/trainer-gpu",
        )
    )["spec"]["containers"]  # fmt: skip
    assert container["image"] == "r.example.com:5000/gymtrain/operator:v1"
    assert {a for a in container["args"] if a.startswith("--image-") and "pull" not in a} == {
        "--image-gym=r.example.com:5000/mine/gym:3",
        "--image-gateway=r.example.com:5000/gymtrain/gateway:v2",
        "--image-inference=r.example.com:5000/gymtrain/inference:v2",
        "--image-inference-gpu=r.example.com:5000/vllm@sha256:0",
        "--image-trainer=r.example.com:5000/gymtrain/trainer:v2",
        "--image-trainer-gpu=r.example.com:5000/gymtrain/trainer-gpu:v2",
        "--image-broker=r.example.com:5000/gymtrain/broker:v2",
        "--image-sandbox=r.example.com:5000/gymtrain/sandbox:v2",
    }


@pytest.mark.parametrize("name", ["gymtrain/operator@sha256:0", "gymtrain/operator:v3"])
def test_the_operators_image_can_be_named_in_full(name: str) -> None:
    (container,) = _pod(render(f"image.repository={name}", "image.tag=v1"))["spec"]["containers"]
    assert container["image"] == f"r.example.com/{name}"


_NAMES = [f"images.{part}" for part in ("gym", "gateway", "inference", "trainer", "broker", "sandbox")]


@pytest.mark.parametrize(
    "values",
    [
        ["imageRegistry=r.example.com/"],
        ["image.tag=dev", "images.tag=dev"],  # built into the development cluster
        ["image.repository=r.example.com/a", *(f"{name}=localhost/a" for name in _NAMES)],
    ],
)
def test_images_that_somebody_has_are_accepted(values: list[str]) -> None:
    sets = [argument for value in values for argument in ("--set", value)]
    done = helm("template", "gymtrain", str(CHART), "--kube-version", "1.34", *sets)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ([], "gymtrain/operator:0.1.0"),
        (["image.tag=dev"], "gymtrain/gym:0.1.0"),
        (["image.tag=dev", "images.tag=dev", "images.trainerGpu=gymtrain/trainer-gpu:1"], "gymtrain/trainer-gpu:1"),
    ],
)
def test_images_that_nobody_publishes_are_refused_with_what_to_set(values: list[str], image: str) -> None:
    sets = [argument for value in values for argument in ("--set", value)]
    done = helm("template", "gymtrain", str(CHART), "--kube-version", "1.34", *sets)
    assert done.returncode != 0
    assert f"{image} names no registry" in done.stderr
    assert "imageRegistry" in done.stderr


@pytest.mark.parametrize(
    ("value", "argument"), [("userNamespaces", "--user-namespaces"), ("imageVolumes", "--image-volumes")]
)
def test_the_operator_is_told_what_the_cluster_has(value: str, argument: str) -> None:
    def arguments(*sets: str) -> list[str]:
        found: list[str] = _pod(render(*sets))["spec"]["containers"][0]["args"]
        return found

    assert argument not in arguments()
    assert argument in arguments(f"sandboxes.{value}=true")


SCRAPERS = [
    "metrics.runs.scrapers[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring",
    "metrics.runs.scrapers[0].podSelector.matchExpressions[0].key=app",
    "metrics.runs.scrapers[0].podSelector.matchExpressions[0].operator=In",
    "metrics.runs.scrapers[0].podSelector.matchExpressions[0].values={prometheus}",
]


def test_the_operator_is_told_who_scrapes_runs() -> None:
    def scrapers(*sets: str) -> Scrapers:
        arguments = _pod(render(*sets))["spec"]["containers"][0]["args"]
        return parse(arguments, {}).defaults.scrapers

    assert scrapers() == Scrapers()
    rule = scrapers(*SCRAPERS, "metrics.runs.roles={trainer}").rule([Role.TRAINER])
    assert rule == {
        "from": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["prometheus"]}]},
            }
        ],
        "ports": [{"port": 8080, "protocol": "TCP"}],
    }


def test_the_api_server_accepts_the_policy_that_lets_them_in(kubectl: Kubectl) -> None:
    defaults = parse(_pod(render(*SCRAPERS))["spec"]["containers"][0]["args"], {}).defaults
    spec = parse_spec(smallest_run(sandboxes={})["spec"])
    run = RunContext("run", kubectl.namespace, "11111111-2222-3333-4444-555555555555", spec, defaults)
    kubectl.apply(*network_policies(run))
    found = kubectl.run("get", "networkpolicies", "-o", "name")
    assert "networkpolicy.networking.k8s.io/run-metrics" in found.splitlines()


def test_pod_monitors_read_the_operator_and_the_runs_where_they_are() -> None:
    assert _of_kind(render(), "PodMonitor") == []
    own, runs = _of_kind(render("metrics.podMonitor.enabled=true", "watchNamespaces={a,b}"), "PodMonitor")
    assert "namespaceSelector" not in own["spec"]
    assert own["spec"]["podMetricsEndpoints"][0]["honorLabels"] is True
    assert runs["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}
    wanted = runs["spec"]["selector"]["matchExpressions"][1]
    assert (wanted["key"], wanted["values"]) == (labels.ROLE, list(ROLES))
    # A trainer must not speak for another run.
    assert "honorLabels" not in runs["spec"]["podMetricsEndpoints"][0]


def test_alerts_link_to_the_runbooks_where_they_are_served() -> None:
    def links(*sets: str) -> set[str]:
        (rule,) = _of_kind(render("metrics.prometheusRule.enabled=true", *sets), "PrometheusRule")
        alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
        return {alert["annotations"]["runbook_url"].split("#")[0] for alert in alerts}

    assert _of_kind(render(), "PrometheusRule") == []
    assert links() == {"docs/runbooks.md"}
    served = "https://docs.example.com/runbooks.html"
    assert links(f"metrics.prometheusRule.runbookUrl={served}") == {served}


def test_the_rules_are_as_prometheus_itself_reads_them() -> None:
    (rule,) = _of_kind(render("metrics.prometheusRule.enabled=true"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text())


def test_dashboards_are_where_grafana_looks_for_them() -> None:
    def config_maps(*sets: str) -> list[Manifest]:
        return _of_kind(render(*sets), "ConfigMap")

    assert config_maps() == []
    made = config_maps("metrics.dashboards.enabled=true", "metrics.dashboards.annotations.grafana_folder=gymtrain")
    files = {path.name: path.read_text() for path in (CHART / "files" / "dashboards").iterdir()}
    assert {name: text for one in made for name, text in one["data"].items()} == {
        f"gymtrain-{name}": text for name, text in files.items()
    }
    for one in made:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "gymtrain"}


def test_the_operator_is_told_what_sandboxes_may_ask_for() -> None:
    def arguments(*sets: str) -> list[str]:
        found: list[str] = _pod(render(*sets))["spec"]["containers"][0]["args"]
        return [one for one in found if one.startswith("--sandbox-max-resources")]

    assert arguments() == ["--sandbox-max-resources=cpu=32,ephemeral-storage=200Gi,memory=64Gi"]
    assert arguments("sandboxes.maxResources.cpu=500m") == [
        "--sandbox-max-resources=cpu=500m,ephemeral-storage=200Gi,memory=64Gi"
    ]
    assert arguments(*(f"sandboxes.maxResources.{name}=null" for name in ("cpu", "memory", "ephemeral-storage"))) == []


def test_the_labels_are_those_that_runs_let_in() -> None:
    """Each run's NetworkPolicy admits pods with these two labels."""
    labels = _pod(render(release="other"))["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "gymtrain"
    assert labels["app.kubernetes.io/component"] == "operator"


def test_uninstall_keeps_the_crds() -> None:
    crds = _of_kind(render(), "CustomResourceDefinition")
    assert [crd["spec"]["names"]["kind"] for crd in crds] == ["GymTrainingRun", "GymTrainingDefaults"]
    assert {crd["metadata"]["annotations"]["helm.sh/resource-policy"] for crd in crds} == {"keep"}


@pytest.mark.parametrize(
    ("values", "times"),
    [
        ((), LeaseTimes(30, 20.0, 2.0)),
        (("lease=null",), LeaseTimes(30, 20.0, 2.0)),  # as with the values of a release before it (--reuse-values)
        (("replicas=2",), LeaseTimes(6, 4.0, 1.0)),
        (("replicas=2", "lease.durationSeconds=15", "lease.retryPeriodSeconds=0.5"), LeaseTimes(15, 4.0, 0.5)),
    ],
)
def test_the_lease_is_short_where_another_replica_stands_by(values: tuple[str, ...], times: LeaseTimes) -> None:
    assert parse(_pod(render(*values))["spec"]["containers"][0]["args"], {}).lease_times == times


def test_times_of_the_lease_that_leave_no_time_are_refused_before_the_install() -> None:
    short = ("--set", "imageRegistry=r/,lease.durationSeconds=10")
    done = helm("template", "gymtrain", str(CHART), "--kube-version", "1.34", *short)
    assert done.returncode != 0
    assert "lease.durationSeconds (10) must be more than lease.renewDeadlineSeconds (20)" in done.stderr


def test_replicas_go_to_different_nodes_where_they_can() -> None:
    (deployment,) = _of_kind(render("replicas=2"), "Deployment")
    (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"] == deployment["spec"]["selector"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("watchNamespace=team", "additional properties 'watchNamespace' not allowed"),
        ("log.level=loud", "/log/level"),
        ("images.pullPolicy=Sometimes", "/images/pullPolicy"),
        ("imageRegistry=r.example.com", "/imageRegistry"),
        ("replicas=two", "/replicas"),
        ("metrics.runs.scrapers[0].podSelector.matchLabels.a=b", "/metrics/runs/scrapers/0"),
        ("metrics.runs.roles={gym}", "/metrics/runs/roles/0"),
        ("metrics.prometheusRule.runbookUrl=docs.example.com", "/metrics/prometheusRule/runbookUrl"),
        ("watchNamespaces={Team_A}", "/watchNamespaces/0"),
        ("imageRegistry=r/,watchNamespaces={a},namespaceSelector.matchLabels.b=c", "set one of them"),
        ("namespaceSelector.team=a", "/namespaceSelector"),
        ("lease.durationSeconds=15s", "/lease/durationSeconds"),
        ("lease.renewDeadlineSeconds=0", "/lease/renewDeadlineSeconds"),
    ],
)
def test_a_wrong_value_is_refused_by_name(value: str, complaint: str) -> None:
    done = helm("template", "gymtrain", str(CHART), "--kube-version", "1.34", "--set", value)
    assert done.returncode != 0
    assert complaint in done.stderr


@pytest.mark.parametrize("value", ["gangScheduling=null", "namespaceSelector=null", "kueue=null"])
def test_the_values_of_a_release_before_are_enough(value: str) -> None:
    """As `helm upgrade --reuse-values` has them."""
    assert render(value) == render()


def test_the_readme_lists_every_value() -> None:
    readme = (CHART / "README.md").read_text()
    assert [key for key in yaml.safe_load((CHART / "values.yaml").read_text()) if f"`{key}" not in readme] == []
