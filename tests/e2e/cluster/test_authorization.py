import pytest

from tests.support.kubectl import Kubectl, KubectlError


def test_an_account_without_rights_may_not_read_pods(kubectl: Kubectl) -> None:
    with pytest.raises(KubectlError, match="forbidden"):
        kubectl.run("get", "pods", f"--as=system:serviceaccount:{kubectl.namespace}:default")


def test_an_account_may_do_what_its_role_says_and_no_more(kubectl: Kubectl) -> None:
    account = f"{kubectl.namespace}:default"
    kubectl.run("create", "role", "reader", "--verb=list", "--resource=pods")
    kubectl.run("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={account}")
    impersonated = f"--as=system:serviceaccount:{account}"

    kubectl.run("get", "pods", impersonated)

    with pytest.raises(KubectlError, match="forbidden"):
        kubectl.run("get", "secrets", impersonated)
    with pytest.raises(KubectlError, match="forbidden"):
        kubectl.run("delete", "pod", "any", impersonated)


def test_a_node_may_not_read_secrets_of_pods_that_it_does_not_run(kubectl: Kubectl) -> None:
    kubectl.run("create", "secret", "generic", "foreign", "--from-literal=key=value")

    with pytest.raises(KubectlError, match="no relationship found"):
        kubectl.run("get", "secret", "foreign", "--as=system:node:other", "--as-group=system:nodes")
