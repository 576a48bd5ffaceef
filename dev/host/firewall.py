"""What kube-proxy, kube-router and the CNI plugins leave in the packet filter, and its removal.

kube-proxy owns whole nftables tables. kube-router and the CNI plugins write chains of telling names into the shared
iptables tables, and ipsets; these are taken out one by one, so that rules of others stay untouched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from dev.settings import NAME
from dev.shell import run

_CHAIN_PREFIXES = ("KUBE-", "CNI-")
_SET_PREFIXES = ("KUBE-", "kube-router-", "inet6:KUBE-", "inet6:kube-router-")
_TABLES = ("filter", "nat", "mangle", "raw")
_COMMANDS = ("iptables", "ip6tables")
_MARKS = (*(f" {prefix}" for prefix in _CHAIN_PREFIXES), "KUBE-ROUTER", f'name: "{NAME}"')
"""In a rule of a shared chain: the chain it leads to, or the comment that its maker wrote."""


def leftovers() -> list[str]:
    """One line for each table, chain, rule and set of a cluster that is still there."""
    found = [f"nftables table {family} {name}" for family, name in _proxy_tables()]
    for command in _COMMANDS:
        for table in _TABLES:
            chains, rules = _ours(command, table)
            found += [f"{command} -t {table} chain {chain}" for chain in chains]
            found += [f"{command} -t {table} rule {' '.join(rule)}" for rule in rules]
    return found + [f"ipset {name}" for name in _sets()]


def clean() -> None:
    """Remove all of it: rules that lead to our chains, the chains, then the sets they used."""
    for family, name in _proxy_tables():
        run(["nft", "delete", "table", family, name], check=False)
    for command in _COMMANDS:
        for table in _TABLES:
            chains, rules = _ours(command, table)
            if not chains and not rules:
                continue
            script = [f"*{table}", *(" ".join(["-D", *rule[1:]]) for rule in rules)]
            script += [f"-F {chain}" for chain in chains] + [f"-X {chain}" for chain in chains]
            run([f"{command}-restore", "--noflush", "-w", "5"], stdin="\n".join([*script, "COMMIT", ""]), check=False)
    for name in _sets():
        run(["ipset", "destroy", name], check=False)
    _drop_empty_tables()


def _proxy_tables() -> list[tuple[str, str]]:
    lines = run(["nft", "list", "tables"], check=False).stdout.splitlines()
    tables = [(words[1], words[2]) for words in map(str.split, lines) if len(words) == 3]
    return [(family, name) for family, name in tables if name == "kube-proxy"]


def _ours(command: str, table: str) -> tuple[list[str], list[list[str]]]:
    if table not in _loaded_tables(command):
        return [], []
    return ours(run([f"{command}-save", "-t", table], check=False).stdout.splitlines())


def ours(saved: list[str]) -> tuple[list[str], list[list[str]]]:
    """Chains of ours in an iptables-save listing, and the rules of shared chains that are ours."""
    chains = [line[1:].split()[0] for line in saved if line.startswith(":") and line[1:].startswith(_CHAIN_PREFIXES)]
    rules: list[list[str]] = []
    for line in saved:
        words = line.split(" ")
        if words[0] != "-A" or words[1].startswith(_CHAIN_PREFIXES):
            continue
        if any(mark in line for mark in _MARKS):
            rules.append(words)
    return chains, rules


def _loaded_tables(command: str) -> set[str]:
    """The iptables tables that exist. Asking iptables itself would create them."""
    family = "ip" if command == "iptables" else "ip6"
    lines = run(["nft", "list", "tables"], check=False).stdout.splitlines()
    return {words[2] for words in map(str.split, lines) if len(words) == 3 and words[1] == family}


def _sets() -> list[str]:
    names = run(["ipset", "list", "-name"], check=False).stdout.split()
    return [name for name in names if name.startswith(_SET_PREFIXES)]


def _drop_empty_tables() -> None:
    """iptables makes its tables on first use; without rules and with open policies they are noise."""
    for command, family in zip(_COMMANDS, ("ip", "ip6"), strict=True):
        for table in _loaded_tables(command) & set(_TABLES):
            if all(_is_bare(entry) for entry in _entries(family, table)):
                run(["nft", "delete", "table", family, table], check=False)


def _entries(family: str, table: str) -> Iterator[dict[str, dict[str, object]]]:
    listing = run(["nft", "-j", "list", "table", family, table], check=False).stdout
    yield from json.loads(listing or "{}").get("nftables", [])


def _is_bare(entry: dict[str, dict[str, object]]) -> bool:
    if "chain" in entry:
        return entry["chain"].get("policy", "accept") == "accept"
    return "metainfo" in entry or "table" in entry
