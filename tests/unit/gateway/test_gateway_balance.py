"""Which admissible pod gets a call."""

from gymtrain_gateway.pod_choice import choose, conversation

PODS = {"http://a": 0, "http://b": 0, "http://c": 0}


def test_all_turns_of_a_conversation_have_one_name() -> None:
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    later = [*first, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]
    assert conversation({"messages": first}) == conversation({"messages": later})
    assert conversation({"messages": first}) != conversation({"messages": [{"role": "user", "content": "other"}]})


def test_a_conversation_stays_with_its_pod() -> None:
    assert {choose("key", PODS, 8) for _ in range(5)} == {choose("key", PODS, 8)}


def test_conversations_spread_over_the_pods() -> None:
    assert {choose(f"key {number}", PODS, 8) for number in range(100)} == set(PODS)


def test_a_pod_that_leaves_moves_only_its_own_conversations() -> None:
    before = {key: choose(key, PODS, 8) for key in map(str, range(100))}
    left = {url: 0 for url in PODS if url != "http://b"}
    assert all(choose(key, left, 8) == url for key, url in before.items() if url != "http://b")


def test_a_full_pod_yields_to_the_least_loaded() -> None:
    home = choose("key", PODS, 8)
    assert home is not None
    loads = {**dict.fromkeys(PODS, 5), home: 8}
    other = choose("key", {**loads, "http://d": 1}, 8)
    assert other == "http://d"


def test_a_clearly_busier_pod_yields_too() -> None:
    home = choose("key", PODS, 1000)
    assert home is not None
    assert choose("key", {**PODS, home: 8}, 1000) == home
    assert choose("key", {**PODS, home: 9}, 1000) != home


def test_nobody_is_chosen_while_all_are_full() -> None:
    assert choose("key", dict.fromkeys(PODS, 8), 8) is None
    assert choose("key", {}, 8) is None


def test_a_pod_to_avoid_is_taken_only_without_another() -> None:
    home = choose("key", PODS, 8)
    assert home is not None
    assert choose("key", PODS, 8, {home}) != home
    assert choose("key", {home: 0}, 8, {home}) == home
    full = {url: 0 if url == home else 8 for url in PODS}
    assert choose("key", full, 8, {home}) is None
