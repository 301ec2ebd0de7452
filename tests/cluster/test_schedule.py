import random

from specbench.cluster.schedule import MOST_TRIES, Batch, Row, Schedule

from .workers import row


def drain(schedule: Schedule, worker: int) -> list[tuple[int, int]]:
    """Give a worker everything that waits; return task and example of each row."""
    taken = []
    while given := schedule.take(worker):
        taken.append((given.task, given.batches[0].places[0][2]))
        for batch in given.batches:
            for place in batch.places:
                schedule.found(worker, place)
        schedule.ended(worker)
    return taken


def test_rows_come_in_their_order_and_whole() -> None:
    schedule = Schedule([row(0, 0), row(0, 1)])
    assert schedule.left == 4
    assert drain(schedule, 0) == [(0, 0), (0, 1)]
    assert schedule.left == 0
    assert schedule.take(0) is None


def test_workers_spread_over_tasks_and_stay_with_theirs() -> None:
    schedule = Schedule([row(task, example) for task in (0, 1) for example in range(4)])
    first, second = schedule.take(0), schedule.take(1)
    assert first is not None and second is not None
    assert {first.task, second.task} == {0, 1}
    for _ in range(3):
        for worker, known in ((0, first), (1, second)):
            schedule.ended(worker)
            again = schedule.take(worker)
            assert again is not None and again.task == known.task


def test_a_worker_without_rows_of_its_task_helps_with_another() -> None:
    schedule = Schedule([row(0, 0), row(1, 0), row(1, 1)])
    assert sorted(drain(schedule, 0)) == [(0, 0), (1, 0), (1, 1)]


def test_only_what_is_missing_of_a_lost_row_waits_again_behind_the_others() -> None:
    schedule = Schedule([row(0, 0, cells=3), row(0, 1)])
    schedule.take(0)
    schedule.found(0, (0, 0, 0, 0))
    assert schedule.lost(0) == []
    assert schedule.left == 4
    other, again = schedule.take(1), schedule.take(2)
    assert other is not None and other.batches[0].places == ((0, 0, 1, 0),)
    assert again is not None
    assert [b.places for b in again.batches] == [((0, 0, 0, 1),), ((0, 0, 0, 2),)]


def test_what_three_workers_die_of_is_given_up_and_nothing_else() -> None:
    poison = (0, 0, 0, 1)
    schedule = Schedule([row(0, 0, cells=3)])
    given_up = []
    for worker in range(MOST_TRIES):
        taken = schedule.take(worker)
        assert taken is not None
        for batch in taken.batches:
            if poison in batch.places:
                break
            schedule.found(worker, batch.places[0])
        assert given_up == []
        given_up = schedule.lost(worker)
    assert given_up == [poison]
    rest = schedule.take(9)
    assert rest is not None and [b.places for b in rest.batches] == [((0, 0, 0, 2),)]
    assert schedule.left == 1


def test_of_a_batch_only_samples_that_saw_every_death_are_given_up() -> None:
    one, two = (0, 0, 0, 0), (0, 0, 1, 0)
    schedule = Schedule([Row(0, (Batch((one, two)),))])
    for worker in range(MOST_TRIES - 1):
        schedule.take(worker)
        assert schedule.lost(worker) == []
    schedule.take(7)
    schedule.found(7, two)  # side by side they need not end in their order
    assert schedule.lost(7) == [one]
    assert schedule.left == 0


def test_a_worker_that_dies_without_a_row_takes_nothing_with_it() -> None:
    schedule = Schedule([row(0, 0)])
    assert schedule.lost(3) == []
    assert schedule.left == 2


def test_no_sample_is_lost_or_found_twice_whatever_happens() -> None:
    for seed in range(20):
        lose_workers_at_random(random.Random(seed))


def lose_workers_at_random(chance: random.Random) -> None:
    rows = [row(task, example, chance.randint(1, 4)) for task in range(3) for example in range(7)]
    schedule = Schedule(rows)
    seen: list[object] = []
    at_work: dict[int, list[object]] = {}
    while schedule.left:
        worker = chance.randrange(5)
        if worker not in at_work:
            if (taken := schedule.take(worker)) is not None:
                at_work[worker] = [place for batch in taken.batches for place in batch.places]
        elif chance.random() < 0.2:
            seen += schedule.lost(worker)
            del at_work[worker]
        elif at_work[worker]:
            place = at_work[worker].pop(0)
            schedule.found(worker, place)  # type: ignore[arg-type]
            seen.append(place)
        else:
            schedule.ended(worker)
            del at_work[worker]
    wanted = [place for each in rows for batch in each.batches for place in batch.places]
    assert sorted(seen) == sorted(wanted)  # type: ignore[type-var]
