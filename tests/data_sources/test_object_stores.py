"""s3://, gs:// and az:// sources, on emulators of the stores."""

import pytest

from tests.data_sources.conftest import Fetch, Store

pytestmark = pytest.mark.data_sources

ROWS = b'{"responses_create_params":{"input":"2 + 2 ="}}\n' * 1000


def test_object_is_fetched_whole_and_noted(store: Store, fetch: Fetch) -> None:
    store.put("some/train.jsonl", ROWS)
    done = fetch(f"{store.scheme}://rows/some/train.jsonl", secret=store.secret)
    assert done.code == 0, done.output
    assert done.rows() == ROWS
    assert done.note()["source"] == f"{store.scheme}://rows/some/train.jsonl"
    assert done.note()["version"]
    assert done.note()["bytes"] == len(ROWS)


def test_object_of_many_pieces_is_fetched_whole(store: Store, fetch: Fetch) -> None:
    content = b"".join(b'{"n":%d,"fill":"%s"}\n' % (number, b"x" * 1000) for number in range(40_000))
    store.put("large.jsonl", content)
    done = fetch(f"{store.scheme}://rows/large.jsonl", secret=store.secret)
    assert done.code == 0, done.output
    assert done.rows() == content


def test_what_is_there_and_the_same_is_not_fetched_again(store: Store, fetch: Fetch) -> None:
    url = f"{store.scheme}://rows/twice.jsonl"
    store.put("twice.jsonl", ROWS)
    assert "fetched" in fetch(url, secret=store.secret).output
    assert "is already there" in fetch(url, secret=store.secret).output


def test_what_has_changed_is_fetched_again(store: Store, fetch: Fetch) -> None:
    url = f"{store.scheme}://rows/changing.jsonl"
    store.put("changing.jsonl", ROWS)
    fetch(url, secret=store.secret)
    store.put("changing.jsonl", ROWS * 2)
    assert fetch(url, secret=store.secret).rows() == ROWS * 2


def test_object_that_is_not_there_is_refused_at_once(store: Store, fetch: Fetch) -> None:
    done = fetch(f"{store.scheme}://rows/none.jsonl", secret=store.secret)
    assert done.code == 78
    assert f"spec.data.train[0].source: {store.scheme}://rows/none.jsonl: doesn't exist" in done.output
    assert "try 1" not in done.output


def test_store_that_does_not_answer_is_tried_again_and_named(s3: Store, fetch: Fetch) -> None:
    done = fetch("s3://rows/x.jsonl", secret=s3.secret | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert done.code == 1
    assert "failed 5 times at byte 0" in done.output


def test_secret_is_in_no_output(s3: Store, fetch: Fetch) -> None:
    s3.put("some.jsonl", ROWS)
    secret = s3.secret | {"AWS_SECRET_ACCESS_KEY": "very-secret"}
    for url in ("s3://rows/some.jsonl", "s3://rows/none.jsonl"):
        assert "very-secret" not in fetch(url, secret=secret).output


def test_azure_needs_an_account(fetch: Fetch) -> None:
    done = fetch("az://rows/x.jsonl")
    assert done.code == 78
    assert "needs AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING in its secret" in done.output
