"""CRDs and the chart's rights on an API server of the tests' own."""

import json
from pathlib import Path

from tests.support.apiserver import ApiServer, binary
from tests.support.chart import CHART, render
from tests.support.kubectl import PATIENCE, Kubectl, eventually

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / "gymtrain.dev_gymtrainingruns.yaml"
DEFAULTS_CRD = ROOT / "crds" / "gymtrain.dev_gymtrainingdefaults.yaml"
OPERATOR_NAMESPACE = "gymtrain-system"


def install_crd(server: ApiServer, crd: Path = CRD) -> None:
    """Applies the CRD, and waits until it is established."""
    admin = Kubectl(str(server.kubeconfig), "default", binary("kubectl"))
    admin.run("apply", "--server-side", "-f", str(crd))
    wait = ("wait", "--for=condition=Established", "-f", str(crd))
    # kubectl fails where the object has no conditions at all yet.
    eventually(lambda: admin.run(*wait, check=False), "the CRD is established", PATIENCE)


def token_of_chart(server: ApiServer, chart: Path = CHART, *sets: str, release: str = "gymtrain") -> str:
    """Applies the rights that a release of a chart gives its operator, in the namespace that is there for it. Returns a
    new token of its ServiceAccount. `sets` are values, as `render` has them."""
    admin = Kubectl(str(server.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    manifests = render(*sets, namespace=OPERATOR_NAMESPACE, chart=chart, release=release)
    admin.apply(*(m for m in manifests if m["kind"] in kinds))
    (account,) = (m["metadata"]["name"] for m in manifests if m["kind"] == "ServiceAccount")
    answer = admin.run("create", "token", account, "--duration=12h", "-o", "json")
    token: str = json.loads(answer)["status"]["token"]
    return token
