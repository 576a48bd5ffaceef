"""Prompts with the exact tokens of earlier turns."""

from gymtrain_gateway.history import PastTurn
from gymtrain_gateway.splice import Fork, continues, dropped, missing_tail, opening_of, splice, tail_of

END, NL = 0, 5
TAIL = [END, NL]


def turn(prompt: list[int], output: list[int], content: str = "x") -> PastTurn:
    return PastTurn(1, {"content": content}, prompt, output)


def test_the_tail_is_where_two_answers_agree_again() -> None:
    assert tail_of([1, 2, 9, END, NL], [1, 2, 8, END, NL]) == TAIL


def test_the_opening_is_what_asking_for_an_answer_adds() -> None:
    assert opening_of([1, 2, 6, 7], [1, 2]) == [6, 7]
    assert opening_of([1, 3, 6, 7], [1, 2]) == []  # a template that writes the conversation differently then


def test_only_what_the_model_did_not_sample_of_the_end_is_added() -> None:
    assert missing_tail([7, 8, END], TAIL) == [NL]
    assert missing_tail([7, 8], TAIL) == TAIL
    assert missing_tail([7, 8, NL], TAIL) == TAIL  # cut short after a line break of its own
    assert missing_tail([7, END, NL], TAIL) == []


def test_sampled_tokens_replace_the_templates() -> None:
    first = turn([1, 2, 3], [81, 82, END])
    head = [1, 2, 3, 90, END, NL]
    assert splice([*head, 4, 6], head, [first], TAIL) == [1, 2, 3, 81, 82, END, NL, 4, 6]


def test_an_answer_cut_short_gets_its_end() -> None:
    first = turn([1, 2, 3], [81])
    head = [1, 2, 3, 90, END, NL]
    assert splice([*head, 4, 6], head, [first], TAIL) == [1, 2, 3, 81, END, NL, 4, 6]


def test_earlier_answers_may_differ_in_tokens_too() -> None:
    first = turn([1, 2, 3], [81, END])
    second = turn([1, 2, 3, 81, END, NL, 4, 6], [82, END])
    head = [1, 2, 3, 90, END, NL, 4, 6, 91, END, NL]
    assert splice([*head, 7], head, [first, second], TAIL) == [*second.known, NL, 7]


def test_the_last_token_given_may_merge_with_the_answer() -> None:
    first = turn([1, 2, 3], [81, END])
    head = [1, 2, 33, END, NL]
    assert splice([*head, 7], head, [first], TAIL) == [1, 2, 3, 81, END, NL, 7]


def test_an_opening_that_the_history_has_not_is_no_change() -> None:
    first = turn([1, 2, 3, 6, 7, 8], [81, END])
    head = [1, 2, 3, 6, 90, END, NL]
    full = [*head, 4, 6, 7, 8]
    assert isinstance(splice(full, head, [first], TAIL), Fork)
    assert splice(full, head, [first], TAIL, [6, 7, 8]) == [1, 2, 3, 6, 7, 8, 81, END, NL, 4, 6, 7, 8]


def test_other_words_before_the_opening_are_a_change() -> None:
    first = turn([1, 2, 3, 6, 7], [81, END])
    head = [1, 9, 3, 6, 90, END, NL]
    assert isinstance(splice([*head, 4, 6, 7], head, [first], TAIL, [6, 7]), Fork)


def test_a_history_that_later_turns_change_is_a_fork() -> None:
    first = turn([1, 2, 3], [81, END])
    found = splice([1, 2, 3, END, NL, 4], [1, 2, 3, 90, END, NL], [first], TAIL)
    assert isinstance(found, Fork)
    assert found.reason == "rewritten"


def test_other_messages_than_the_model_was_given_are_a_fork() -> None:
    head = [1, 9, 3, 90, END, NL]
    found = splice([*head, 4], head, [turn([1, 2, 3], [81, END])], TAIL)
    assert isinstance(found, Fork)
    assert found.reason == "changed"


def test_tokens_that_no_turn_had_are_a_fork_wherever_they_stand() -> None:
    first = turn([1, 2, 3], [81, END])
    second = turn([1, 2, 3, 81, END, NL, 4, 6], [82, END])
    head = [1, 2, 3, 90, END, NL, 4, 6, 91, END, NL]
    new = [7, 7, END, NL]
    for place in (0, 3, 6, 8):
        found = splice(
            [*head[:place], *new, *head[place:], 7], [*head[:place], *new, *head[place:]], [first, second], TAIL
        )
        assert isinstance(found, Fork), place
        assert found.reason == "changed"


def test_an_end_of_turn_that_stands_in_answers_too_is_no_change() -> None:
    """As a line break in a template without special tokens."""
    first = turn([1, 2, 3], [81, NL, 82, NL])
    second = turn([1, 2, 3, 81, NL, 82, NL, 4, 6], [83, NL, 84])
    head = [1, 2, 3, 90, NL, 91, NL, 4, 6, 92, NL, 93, NL]
    assert splice([*head, 7], head, [first, second], [NL]) == [*second.known, NL, 7]


def test_an_earlier_answer_with_an_end_of_its_own_is_no_change_where_its_tokens_stand_as_they_were() -> None:
    """As templates write it after tool calls."""
    first = turn([1, 2, 3], [81, 82])
    second = turn([1, 2, 3, 81, 82, 4, 6], [83, END])
    head = [1, 2, 3, 81, 82, 4, 6, 91, END, NL]
    assert splice([*head, 7], head, [first, second], TAIL) == [*second.known, NL, 7]


def test_a_template_without_an_end_of_turn_is_a_fork() -> None:
    for tail in ([], [42]):
        found = splice([1, 2, 3, 4], [1, 2, 3], [turn([1, 2], [3])], tail)
        assert isinstance(found, Fork)
        assert found.reason == "no_end_of_turn"


def test_exact_tokens_need_no_splice() -> None:
    assert continues([1, 2, 3, 4], [1, 2, 3])
    assert not continues([1, 2], [1, 2, 3])


def test_a_template_that_leaves_thoughts_out_is_a_fork() -> None:
    thinking = PastTurn(3, {"content": "4", "reasoning": "two and two"}, [1], [2])
    assert dropped("user q assistant <think> two and\ntwo </think> 4", [thinking]) is None
    found = dropped("user q assistant 4", [thinking])
    assert found is not None
    assert found.reason == "dropped"
    assert "message 3" in found.message
