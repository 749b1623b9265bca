"""The simulation of queues agrees with closed forms, and the statistics beside it with values worked out by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from benchmarks.env_parts.forecast import ASIDE, Engine, Recorded, Station, growth, predict, simulate
from benchmarks.env_parts.load import Record
from benchmarks.env_parts.statistics import milliseconds, quantile, slope

STEP_S, OTHER_S = 0.010, 0.002


def machine_repair(jobs: int, servers: int, think: float, service: float) -> float:
    """Return the throughput of M/M/c with a finite population: the birth-death chain's stationary distribution."""
    weights = [1.0]
    for waiting in range(jobs):
        weights.append(weights[-1] * (jobs - waiting) / think / (min(waiting + 1, servers) / service))
    total = sum(weights)
    return sum(weight / total * min(count, servers) / service for count, weight in enumerate(weights))


@pytest.mark.parametrize(("jobs", "servers"), [(1, 1), (10, 1), (10, 3), (40, 4)])
def test_a_queue_of_several_servers_agrees_with_its_closed_form(jobs: int, servers: int) -> None:
    generator = random.Random(3)

    def visits(_: int) -> Iterator[tuple[str, float]]:
        yield "think", generator.expovariate(1 / 2.0)
        yield "served", generator.expovariate(1 / 0.5)

    found = simulate({"think": Station(), "served": Station(servers)}, jobs, visits, rounds=40_000, warm_up=2_000)
    expected = machine_repair(jobs, servers, 2.0, 0.5)
    assert found.rate == pytest.approx(expected, rel=0.03)
    assert found.busy == {"served": pytest.approx(expected * 0.5 / servers, rel=0.03)}
    assert found.round_s == pytest.approx(jobs / expected, rel=0.03), "Little's law"


@pytest.mark.parametrize(("jobs", "rate"), [(1, 1 / 6), (2, 2 / 6), (3, 1 / 3), (9, 1 / 3)])
def test_a_deterministic_pipeline_runs_at_the_pace_of_its_slowest_station(jobs: int, rate: float) -> None:
    visits = [("fast", 1.0), ("slow", 3.0), ("delay", 2.0)]
    found = simulate(
        {"fast": Station(1), "slow": Station(1), "delay": Station()}, jobs, lambda _: visits, rounds=500, warm_up=50
    )
    assert found.rate == pytest.approx(rate, rel=0.01)
    assert found.busy["slow"] == pytest.approx(3 * rate, rel=0.01)


@pytest.mark.parametrize(("jobs", "cores"), [(1, 1), (10, 1), (10, 3), (40, 4)])
def test_shared_cores_agree_with_their_closed_form_whatever_the_services_are(jobs: int, cores: int) -> None:
    generator = random.Random(5)

    def visits(_: int) -> Iterator[tuple[str, float]]:
        yield "think", generator.expovariate(1 / 2.0)
        yield "served", 0.05 if generator.random() < 0.75 else 1.85

    stations = {"think": Station(), "served": Station(machine="host")}
    found = simulate(stations, jobs, visits, machines={"host": cores}, rounds=20_000, warm_up=1_000)
    expected = machine_repair(jobs, cores, 2.0, 0.5)
    assert found.rate == pytest.approx(expected, rel=0.03)
    assert found.busy == {"host": pytest.approx(expected * 0.5 / cores, rel=0.03)}
    assert found.round_s == pytest.approx(jobs / expected, rel=0.03), "Little's law"


@pytest.mark.parametrize(("cores", "rate"), [(1, 1 / 3), (2, 1 / 2), (3, 1 / 2)])
def test_a_visit_aside_holds_nobody_up_but_takes_its_share(cores: int, rate: float) -> None:
    visits = [(f"{ASIDE}after", 1.0), ("loop", 2.0)]
    stations = {"loop": Station(1, "host"), "after": Station(None, "host")}
    found = simulate(stations, 1, lambda _: visits, machines={"host": cores}, rounds=300, warm_up=10)
    assert found.rate == pytest.approx(rate, rel=0.02)
    assert found.busy == {
        "loop": pytest.approx(1.0, rel=0.02),
        "host": pytest.approx(3 * rate / cores, rel=0.02),
    }


def test_first_come_is_first_served() -> None:
    served: list[int] = []

    def visits(job: int) -> Iterator[tuple[str, float]]:
        yield "queue", 1.0
        served.append(job)
        yield "back", 0.5

    simulate({"queue": Station(1), "back": Station()}, 4, visits, rounds=40, warm_up=0)
    assert served[:12] == [0, 1, 2, 3] * 3


@pytest.mark.parametrize("wrong", [{"jobs": 0}, {"rounds": 0}, {"stations": {"x": Station(0)}}, {"machines": {"y": 0}}])
def test_nothing_to_simulate_is_refused(wrong: dict[str, object]) -> None:
    usual: dict[str, object] = {"stations": {"x": Station(1)}, "jobs": 1, "rounds": 1}
    with pytest.raises(ValueError, match="needs jobs, rounds, servers and cores"):
        simulate(visits=lambda _: [("x", 1.0)], warm_up=0, **usual | wrong)  # pyright: ignore[reportArgumentType]


def recorded(**changes: float) -> Recorded:
    latencies = {name: [OTHER_S] for name in ("lease", "reset", "evaluate", "release")} | {"step": [STEP_S]}
    shares = {"client": 0.2, "pool": 0.5, "programs": 0.0, "closing_s": 0.0, "router_s": 0.0005, **changes}
    return Recorded(latencies, 5, cores=2, **shares)  # pyright: ignore[reportArgumentType]


EPISODE_S = 5 * STEP_S + 4 * OTHER_S


def test_one_environment_takes_the_latencies_that_were_recorded() -> None:
    found = predict(recorded(), hosts=1, slots=1, router=False)
    assert found.rate == pytest.approx(1 / EPISODE_S, rel=1e-6)


def test_many_environments_are_bound_by_the_busiest_loop() -> None:
    found = predict(recorded(), hosts=1, slots=16, router=False)
    assert found.rate == pytest.approx(1 / (0.5 * EPISODE_S), rel=0.02)


def test_programs_share_the_cores_of_their_host() -> None:
    found = predict(recorded(client=0.0, pool=0.0, programs=1.0), hosts=1, slots=16, router=False)
    assert found.rate == pytest.approx(2 / (5 * STEP_S + 2 * OTHER_S), rel=0.02)


def test_all_that_runs_on_one_host_shares_its_cores() -> None:
    found = predict(recorded(client=0.4, pool=0.4, programs=0.2, closing_s=0.02), hosts=1, slots=16, router=False)
    assert found.rate == pytest.approx(2 / (0.8 * EPISODE_S + 0.2 * (EPISODE_S - 2 * OTHER_S) + 0.02), rel=0.03)
    assert found.busy["cores 0"] == pytest.approx(1, abs=0.02)


def test_hosts_add_up_until_something_they_share_is_busy() -> None:
    fast = Engine(median_s=0.2, p99_s=0.3, at_a_time=1000, gateway_s=0.002)
    rows = growth(recorded(), fast, [1, 2, 64], slots=4, engines=1)
    first, second, last = (row["episodes_per_s"] for row in rows)
    assert second == pytest.approx(2 * first, rel=0.1)
    assert last < 32 * first
    assert (rows[-1]["busiest"], rows[-1]["busy"]) == ("gateway", pytest.approx(1, abs=0.02))
    # Six turns an episode go through one gateway.
    assert last == pytest.approx(1 / (6 * fast.gateway_s), rel=0.02)


def test_recorded_shares_come_from_processor_time() -> None:
    latencies = {name: [0.1] * 10 for name in ("lease", "reset", "step", "evaluate", "release")}
    record = Record(seconds=5.0, episodes=10, latencies=latencies, server_s=[2.0], client_s=1.0)
    record.programs_s = 0.75
    settled = Record(latencies={name: [0.2] * 5 for name in latencies}, closing_s=[0.1, 0.05])
    found = Recorded.of(record, settled, 1, router_s=0.001, cores=2)
    assert (found.client, found.pool, found.programs) == (0.2, (2.0 - 10 * 0.02) / 5, round((0.75 - 10 * 0.01) / 3, 4))
    assert found.closing_s == 0.03
    assert set(found.latencies["step"]) == {0.1}
    record.latencies["reset"] = []
    with pytest.raises(ValueError, match="no reset was recorded"):
        Recorded.of(record, settled, 1, router_s=0.0, cores=2)


def test_turns_have_the_recorded_median_and_99th_percentile() -> None:
    engine, generator = Engine(median_s=0.4, p99_s=0.9, at_a_time=8, gateway_s=0.001), random.Random(0)
    turns = [engine.turn(generator) for _ in range(20_000)]
    assert quantile(turns, 0.5) == pytest.approx(0.4, rel=0.03)
    assert quantile(turns, 0.99) == pytest.approx(0.9, rel=0.05)


def test_quantiles() -> None:
    assert [quantile([4, 1, 3, 2], share) for share in (0.25, 0.5, 0.51, 1)] == [1, 2, 3, 4]
    assert milliseconds([0.001] * 19 + [0.5]) == {"median": 1.0, "p95": 1.0, "count": 20}
    for values, share in (([], 0.5), ([1.0], 0.0), ([1.0], 1.1)):
        with pytest.raises(ValueError, match="a quantile needs values"):
            quantile(values, share)


def test_slopes() -> None:
    assert slope([0, 1, 2, 3], [5, 7, 9, 11]) == (pytest.approx(2), pytest.approx(0))
    # Residuals of +-1 around a flat line: s^2 = 4 / 2, divided by the spread of the times, 5.
    found, error = slope([0, 1, 2, 3], [1, -1, -1, 1])
    assert (found, error) == (pytest.approx(0), pytest.approx(math.sqrt(2 / 5)))
    for times in ([0, 1], [1, 1, 1]):
        with pytest.raises(ValueError, match="three points at different times"):
            slope(times, [0.0] * len(times))
