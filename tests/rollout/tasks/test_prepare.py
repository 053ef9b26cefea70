"""tasks.jsonl: the same bytes for the same seed, written whole or not at all."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import decode_config
from orl_core.errors import ConfigError, SessionError
from orl_core.task import Task, row_of
from orl_rollout.edge.files import read_lines
from orl_rollout.tasks.file import overlap, read_tasks, trained_tasks
from orl_rollout.tasks.prepare import prepare, share_out
from orl_testing import environments as envs

from tests.kit.answering import Answering
from tests.kit.cookbook_row import cookbook_row


@pytest.fixture
def old(tmp_path):
    """Check that a file of an earlier time stays as it was."""
    output = tmp_path / "tasks.jsonl"
    output.write_text("old")
    yield output
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]
    assert output.read_text() == "old"


def config_of(url, **environments):
    tree = {f"gallery/{name}": {"base_url": url, **settings} for name, settings in environments.items()}
    return decode_config({"environments": tree}, "test")


async def test_the_same_seed_gives_the_same_bytes(gallery, tmp_path):
    config = config_of(gallery.url, Echo={"splits": ["train", "test"]}, Terminal={"num_samples": 3})
    prepared = await prepare(config, tmp_path / "a" / "tasks.jsonl", seed=7)
    assert prepared.counts == {"gallery/Echo": 9, "gallery/Terminal": 3}
    await prepare(config, tmp_path / "b.jsonl", seed=7)
    await prepare(config, tmp_path / "c.jsonl", seed=8)
    first, again, other = [(tmp_path / name).read_bytes() for name in ("a/tasks.jsonl", "b.jsonl", "c.jsonl")]
    assert first == again
    assert sorted(first.splitlines()) != first.splitlines()
    assert first != other


async def test_a_row_is_the_task_that_every_backend_reads(gallery, tmp_path):
    output = tmp_path / "tasks.jsonl"
    config = config_of(gallery.url, Echo={})
    await prepare(config, output)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    tasks = list(read_tasks(output, config))
    assert [row["prompt"] for row in rows] == [task.key for task in tasks]
    assert all(isinstance(row["metadata"], dict) and row["label"] == "" for row in rows)
    task = min(tasks, key=lambda task: task.index or 0)
    assert task == Task(
        env_name="gallery/Echo",
        deployment_name="gallery/Echo",
        server_name="Echo",
        environment_name="echo",
        namespace="gallery",
        index=0,
        task_spec={"number": 0, "split": "train"},
    )


async def test_duplicates_are_left_out_and_replaced(gallery, tmp_path):
    output = tmp_path / "tasks.jsonl"
    config = config_of(gallery.url, Duplicates={})
    prepared = await prepare(config, output)
    assert (prepared.total, prepared.duplicates) == (4, 4)
    prepared = await prepare(config, output, max_tasks=4)
    keys = [task.key for task in read_tasks(output, config)]
    assert prepared.total == len(set(keys)) == 4


async def test_weights_share_out_a_capped_mix(gallery, tmp_path):
    config = config_of(gallery.url, Echo={"weight": 3}, Terminal={"weight": 1})
    prepared = await prepare(config, tmp_path / "tasks.jsonl", max_tasks=8)
    assert prepared.counts == {"gallery/Echo": 6, "gallery/Terminal": 2}
    assert (await prepare(config, tmp_path / "tasks.jsonl")).total == 12


async def test_eval_splits_are_prepared_apart(gallery, tmp_path):
    config = config_of(gallery.url, Echo={"eval_splits": ["test"]}, Terminal={})
    prepared = await prepare(config, tmp_path / "eval.jsonl", splits=("eval_splits",))
    assert prepared.counts == {"gallery/Echo": 3, "gallery/Terminal": 0}
    assert {task.split for task in read_tasks(tmp_path / "eval.jsonl", config)} == {"test"}


async def test_num_samples_caps_training_splits_alone(gallery, tmp_path):
    output = tmp_path / "tasks.jsonl"
    config = config_of(gallery.url, Echo={"num_samples": 2, "eval_splits": ["test"]})
    assert (await prepare(config, output)).total == 2
    assert (await prepare(config, output, splits=("eval_splits",))).total == 3
    assert (await prepare(config, output, splits=("test", "splits"))).total == 3 + 2
    with pytest.raises(ConfigError, match="no split `none`"):
        await prepare(config, output, splits=("none",))


async def test_a_large_listing_is_read_by_pages(gallery, tmp_path):
    pages = gallery.count("/task_range")
    prepared = await prepare(config_of(gallery.url, Endless={}), tmp_path / "tasks.jsonl")
    assert prepared.total == 5_000
    assert gallery.count("/task_range") - pages == 1 + 5


@pytest.mark.parametrize(
    ("environment", "settings", "message"),
    [
        ("Nowhere", {}, "no environment `nowhere`"),
        ("Echo", {"splits": ["trian"]}, "no split `trian`; its splits are: train, test"),
    ],
)
async def test_a_bad_name_leaves_the_old_file(gallery, old, environment, settings, message):
    with pytest.raises((ConfigError, SessionError), match=message) as caught:
        await prepare(config_of(gallery.url, **{environment: settings}), old)
    assert "\n" not in str(caught.value)


class DiesMidway(Answering):
    """Fails at the third page."""

    pages = 0

    async def __call__(self, scope, receive, send):
        self.pages += scope.get("path", "").endswith("/task_range")
        if self.pages > 3:
            self.answers = {"/task_range": (500, [], b"out of memory")}
        await super().__call__(scope, receive, send)


async def test_a_server_that_dies_midway_leaves_the_old_file(old):
    with (
        envs.serve(envs.Endless, wrap=DiesMidway) as served,
        pytest.raises(SessionError, match="HTTP 500: out of memory"),
    ):
        await prepare(config_of(served.url, Endless={}), old)


class Bare(envs.Endless):
    """Has no task, and none at any index."""

    @classmethod
    async def num_tasks(cls, split):
        return 0

    @classmethod
    async def get_task_range(cls, split, start=None, stop=None):
        raise IndexError(start)


async def test_an_environment_that_lists_nothing_leaves_the_others(tmp_path):
    with envs.serve(envs.Echo, Bare) as served:
        prepared = await prepare(config_of(served.url, Bare={}, Echo={}), tmp_path / "tasks.jsonl")
    assert prepared.counts == {"gallery/Bare": 0, "gallery/Echo": 6}


async def test_no_task_at_all_is_refused(gallery, tmp_path):
    with pytest.raises(ConfigError, match="`eval_splits` name none"):
        await prepare(config_of(gallery.url, Echo={}), tmp_path / "eval.jsonl", splits=("eval_splits",))


def test_a_bad_row_is_named_by_file_and_line(tmp_path):
    path, config = tmp_path / "tasks.jsonl", config_of("http://127.0.0.1:1", Echo={})
    row = msgspec.json.encode(row_of(Task(env_name="gallery/Echo", deployment_name="gallery/Echo", index=1)))
    path.write_bytes(row + b"\n" + row.replace(b'"metadata"', b'"metadatum"') + b"\n")
    tasks = read_tasks(path, config)
    assert next(tasks).index == 1
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:2: .*metadat"):
        next(tasks)
    with pytest.raises(ConfigError, match=r"missing\.jsonl"):
        next(read_tasks(tmp_path / "missing.jsonl", config))


def test_cookbook_rows_are_the_same_tasks(tmp_path):
    path, config = tmp_path / "tasks.jsonl", config_of("http://127.0.0.1:1", Echo={})
    task = Task(
        env_name="gallery/Echo",
        deployment_name="gallery/Echo",
        server_name="gallery",
        environment_name="echo",
        task_spec={"number": 3, "text": 'a "quoted" \u00e9'},
    )
    path.write_bytes(msgspec.json.encode(cookbook_row(task)) + b"\n" + msgspec.json.encode(row_of(task)))
    first, second = read_tasks(path, config)
    assert first == second == task


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ('{"env_name": "gallery/Echo"}', "deployment_name"),
        ('{"env_name": "gallery/Ecco", "deployment_name": "gallery/Ecco"}', "no environment `gallery/Ecco`"),
        ('{"question": 1}', "plain row"),
        ('{"a":' * 100_000, "no JSON text"),
    ],
)
def test_metadata_text_without_task_is_refused(tmp_path, metadata, told):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(msgspec.json.encode({"prompt": "?", "metadata": metadata}))
    with pytest.raises(ConfigError, match=rf"tasks\.jsonl:1: .*{told}"):
        next(read_tasks(path, config_of("http://127.0.0.1:1", Echo={})))


def test_tasks_of_both_kinds_are_counted_once(tmp_path):
    config = decode_config({"environments": {"A/B": {}}, "eval": {"allow_overlap": True}}, "test")
    places: dict[str, Any] = {"env_name": "A/B", "deployment_name": "A/B"}
    trained = [Task(**places, task_spec={"n": 1}), Task(**places, task_spec={"n": 2}), Task(**places, index=3)]
    path = tmp_path / "tasks.jsonl"
    rows = [*map(row_of, trained[1:]), cookbook_row(trained[0]), {"prompt": "6 x 7?"}, {"metadata": "no JSON"}]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, [*rows, "no row"])) + b"\n{\n\xff\n")
    assert {task.content for task in trained_tasks(read_lines(path))} == {task.content for task in trained}
    held_out = [
        Task(**places, split="test", task_spec={"n": 1}),
        Task(env_name="C/D", deployment_name="A/B", task_spec={"n": 2}),
        Task(**places, split="test", index=3),
        Task(**places, environment_name="other", task_spec={"n": 1}),
    ]
    assert overlap(config, trained, held_out) == 2
    told = f"2 of 4 .*: 1 in A/B/test, 1 in C/D/train, such as {held_out[0].key}.*only look equal"
    with pytest.raises(ConfigError, match=told):
        overlap(decode_config({"environments": {"A/B": {}}}, "test"), trained, held_out)


@given(
    st.integers(0, 200),
    st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 80)), min_size=1, max_size=5),
)
def test_shares_fill_up_and_keep_to_caps_and_weights(total, members):
    weights, caps = zip(*members, strict=True)
    shares = share_out(total, weights, caps)
    assert sum(shares) == min(total, sum(caps))
    assert all(0 <= share <= cap for share, cap in zip(shares, caps, strict=True))
    for share, weight, cap in zip(shares, weights, caps, strict=True):
        for other, other_weight in zip(shares, weights, strict=True):
            if share < cap and other:
                assert (share + 1) / weight >= other / other_weight - 1e-9


def saying(count):
    """An environment that says it has `count` tasks."""

    class Boastful(envs.Endless):
        @classmethod
        async def num_tasks(cls, split):
            return count

    return Boastful


@pytest.mark.parametrize("count", [-1, 2**63, "10"], ids=repr)
async def test_number_of_tasks_that_is_none_leaves_the_old_file(old, count):
    with (
        envs.serve(saying(count)) as served,
        pytest.raises(SessionError, match=r"gallery/Boastful.*num_tasks") as caught,
    ):
        await prepare(config_of(served.url, Boastful={}), old)
    assert "\n" not in str(caught.value)


async def test_few_tasks_of_a_huge_listing_are_drawn_in_little_memory(tmp_path):
    with envs.serve(saying(2**62)) as served:
        config = config_of(served.url, Boastful={})
        tracemalloc.start()
        try:
            first = await prepare(config, tmp_path / "a.jsonl", max_tasks=10, seed=3)
            assert tracemalloc.get_traced_memory()[1] < 50 << 20
        finally:
            tracemalloc.stop()
        await prepare(config, tmp_path / "b.jsonl", max_tasks=10, seed=3)
    assert first.total == len({task.index for task in read_tasks(tmp_path / "a.jsonl", config)}) == 10
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


async def test_more_tasks_than_a_file_holds_are_refused(tmp_path):
    with envs.serve(saying(2**31)) as served, pytest.raises(ConfigError, match="num_samples"):
        await prepare(config_of(served.url, Boastful={}), tmp_path / "tasks.jsonl")


def test_endless_row_is_refused(tmp_path):
    path, config = tmp_path / "tasks.jsonl", config_of("http://127.0.0.1:1", Echo={})
    path.write_bytes(b'{"prompt": "' + b"x" * (17 << 20))
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:1"):
        next(read_tasks(path, config))
    path.write_bytes(b"[" * 1_000_000)
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:1"):
        next(read_tasks(path, config))
