"""What benchmarks.gpu.chain makes of the steps that its chains print, how it draws them, and how busy its processes
were."""

import os
import statistics
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import processes
from benchmarks.gpu.chain import plot, records
from benchmarks.gpu.chain.chains import busy_shares
from benchmarks.gpu.chain.records import Curve, Step


def curve(*rewards: float, side: str = "ours", staleness: int = 4, correction: str = "None", seed: int = 1) -> Curve:
    steps = tuple(Step(number, reward, 2.0, 0.001, 1.01) for number, reward in enumerate(rewards, 1))
    return Curve(side, staleness, correction, seed, steps)


def test_steps_are_found_between_other_lines() -> None:
    lines = [
        "INFO starting",
        '{"event": "step", "step": 1, "reward": 0.25, "staleness": 0.5, "seconds": 1.0, "kl": 0.002, "ratio": 0.99}',
        "{'reward': 0.25, 'loss': 0.1}",
        '{"event": "step", "step": 2, "reward": 0.5}',
        '{"side": "trl", "reward_last": 0.5}',
        '{"event": "step", "step": 3, "rew',
    ]
    assert records.steps_of(lines) == (Step(1, 0.25, 0.5, 0.002, 0.99), Step(2, 0.5))


def test_a_step_without_a_reward_is_none() -> None:
    assert records.steps_of(['{"event": "step", "step": 1, "reward": null}']) == ()


def test_curves_of_a_file_are_those_that_were_added(tmp_path: Path) -> None:
    added = [curve(0.1, 0.2), Curve("trl", 4, "None", 2, (Step(1, 0.3), Step(2, 0.4, 1.5)))]
    for one in added:
        records.append(tmp_path / "curves.csv", one)
    assert records.read(tmp_path / "curves.csv") == added


def test_of_a_chain_that_ran_twice_the_later_run_counts(tmp_path: Path) -> None:
    for one in (curve(0.1, 0.2, 0.3), curve(0.4, 0.5)):
        records.append(tmp_path / "curves.csv", one)
    assert records.read(tmp_path / "curves.csv") == [curve(0.4, 0.5)]


def test_columns_are_named_once(tmp_path: Path) -> None:
    for seed in (1, 2):
        records.append(tmp_path / "curves.csv", curve(0.1, seed=seed))
    assert (tmp_path / "curves.csv").read_text().splitlines() == [
        "side,staleness,correction,seed,step,reward,staleness_measured,kl,ratio",
        "ours,4,None,1,1,0.1,2.0,0.001,1.01",
        "ours,4,None,2,1,0.1,2.0,0.001,1.01",
    ]


def test_the_summary_has_the_means_of_both_ends() -> None:
    rewards = [0.0] * 10 + [0.5] * 5 + [0.7, 0.9] * 5
    *_, row = records.table([curve(*rewards)]).splitlines()
    assert row == "| ours | 4 | None | 1 | 25 | 0.000 | 0.800 ± 0.105 | 2.00 | 0.00100 |"


def test_the_summary_says_where_a_number_is_not_known() -> None:
    *_, row = records.table([Curve("trl", 4, "None", 1, (Step(1, 0.5),))]).splitlines()
    assert row == "| trl | 4 | None | 1 | 1 | 0.500 | - | - | - |"


def test_ours_is_compared_with_trls_mean_over_seeds() -> None:
    theirs = [curve(*[0.1] * 10, *[last] * 10, side="trl", seed=seed) for seed, last in enumerate((0.5, 0.6, 0.7))]
    (found,) = records.comparisons([*theirs, curve(*[0.1] * 10, *[0.49] * 10)])
    assert [found.ours, found.trl] == pytest.approx([0.49, 0.6])
    assert found.seeds_sd == pytest.approx(0.1)
    assert found.steps_sd == pytest.approx(statistics.stdev([0.5] * 10 + [0.6] * 10 + [0.7] * 10))


@pytest.mark.parametrize(("ours", "verdict"), [(0.49, "0.100 over seeds: MISSED"), (0.51, "0.100 over seeds: reached")])
def test_the_aim_is_one_deviation_below_trls(ours: float, verdict: str) -> None:
    theirs = [curve(*[last] * 10, side="trl", seed=seed) for seed, last in enumerate((0.5, 0.6, 0.7))]
    (found,) = records.comparisons([*theirs, curve(*[ours] * 10)])
    assert verdict in str(found)


def test_a_chain_that_ended_early_is_not_compared() -> None:
    theirs = curve(*[0.5] * 20, side="trl")
    found = records.comparisons([theirs, curve(*[0.5] * 20), curve(*[0.1] * 12, seed=2)])
    assert [one.ours for one in found] == [0.5]


def test_ours_alone_is_compared_with_nothing() -> None:
    assert records.comparisons([curve(0.5, 0.6)]) == []


def test_a_point_is_the_mean_of_its_step_and_the_nine_before() -> None:
    found = plot.points(curve(*map(float, range(12))))
    assert found[0] == (1, 0.0)
    assert found[11] == (12, 6.5)


def test_seeds_are_averaged_as_far_as_all_came() -> None:
    assert plot.mean([[(1, 0.0), (2, 0.5)], [(1, 1.0), (2, 0.7), (3, 0.9)]]) == [(1, 0.5), (2, 0.6)]


def test_each_correction_has_a_panel_with_a_line_for_each_staleness() -> None:
    curves = [curve(0.1, staleness=n, correction=mode) for mode in ("None", "TokenMask") for n in (16, 0, 4)]
    (panels,) = plot.figures(curves).values()
    assert list(panels) == ["correction None", "correction TokenMask"]
    assert [list(lines) for lines in panels.values()] == [["maxStaleness 0", "maxStaleness 4", "maxStaleness 16"]] * 2


def test_seeds_of_both_sides_are_in_one_figure() -> None:
    curves = [curve(0.1, side=side, seed=seed) for side in ("ours", "trl") for seed in (1, 2, 3)]
    (name, panels), *others = plot.figures(curves).items()
    (lines,) = panels.values()
    assert (name, others) == ("sides", [])
    assert {label: len(seeds) for label, seeds in lines.items()} == {
        "ours, maxStaleness 4, correction None": 3,
        "TRL": 3,
    }


def test_one_curve_makes_no_figure() -> None:
    assert plot.figures([curve(0.1, 0.2)]) == {}


def test_a_figure_is_svg_with_its_labels_as_text(tmp_path: Path) -> None:
    curves = [curve(0.1, 0.4, staleness=staleness) for staleness in (0, 4)]
    plot.draw(plot.figures(curves)["staleness"], tmp_path / "one.svg")
    texts = {node.text for node in ElementTree.parse(tmp_path / "one.svg").iter("{http://www.w3.org/2000/svg}text")}
    assert {"maxStaleness 0", "maxStaleness 4", "correction None", "optimizer step"} <= texts


def test_the_same_curves_make_the_same_file(tmp_path: Path) -> None:
    curves = [curve(0.1, 0.4, side=side, seed=seed) for side in ("ours", "trl") for seed in (1, 2)]
    for name in ("one", "two"):
        plot.draw(plot.figures(curves)["sides"], tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_processes_are_as_busy_as_their_busiest_thread() -> None:
    first = {"1 gateway": 2.0, "2 agent": 1.0}
    last = {"1 gateway": 11.0, "2 agent": 1.1, "3 later": 5.0}
    assert busy_shares([(100.0, first), (103.0, {}), (110.0, last)]) == {"1 gateway": 0.9}
    assert busy_shares([(100.0, first)]) == {}


def test_processes_are_named_by_what_python_runs() -> None:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with processes.ended_after(subprocess.Popen(command, stdout=subprocess.PIPE)) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith(b"Serving")
        found = processes.busiest_threads(os.getpid())
        whole = processes.usage(running.pid).cpu
    assert 0 < found[f"{running.pid} http.server"] <= whole
