from dev.host.firewall import ours

SAVED = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:CNI-7a8d9f - [0:0]
:SOMEBODY - [0:0]
-A INPUT -m comment --comment "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
-A INPUT -m comment --comment "KUBE-ROUTER rule to explicitly ACCEPT traffic" -m mark --mark 0x20000/0x20000 -j ACCEPT
-A INPUT -s 192.0.2.7/32 -j SOMEBODY
-A POSTROUTING -s 10.244.0.3/32 -m comment --comment "name: \\"gymtrain\\" id: \\"5f\\"" -j CNI-7a8d9f
-A KUBE-ROUTER-INPUT -d 10.96.0.0/16 -j RETURN
-A SOMEBODY -m comment --comment "allow kubectl" -j ACCEPT
COMMIT
""".splitlines()


def test_only_chains_and_rules_of_a_cluster_are_ours() -> None:
    chains, rules = ours(SAVED)

    assert chains == ["KUBE-ROUTER-INPUT", "CNI-7a8d9f"]
    assert [" ".join(rule)[:14] for rule in rules] == ["-A INPUT -m co", "-A INPUT -m co", "-A POSTROUTING"]
    assert not any("SOMEBODY" in rule for rule in rules)
