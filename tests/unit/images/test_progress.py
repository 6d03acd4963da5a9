"""What is kept of the progress of an image, and how little memory a talkative build takes."""

from reconcilers.images.progress import BYTES_KEPT, LINE_MAX, LINES_KEPT, Board, Progress


def test_a_reader_gets_each_line_once_by_number() -> None:
    progress = Progress()
    progress.stage("step 1")
    progress.line(b"one")
    progress.line(b"two")
    seen = progress.seen()
    assert (seen.stage, seen.first, seen.lines) == ("step 1", 0, (b"one", b"two"))
    progress.line(b"three")
    seen = progress.seen(seen.first + len(seen.lines))
    assert (seen.first, seen.lines) == (2, (b"three",))
    assert progress.seen(3).lines == ()
    assert progress.seen(99).first == 3


def test_lines_are_bounded_and_what_was_dropped_can_be_told() -> None:
    progress = Progress()
    for number in range(LINES_KEPT + 10):
        progress.line(b"%d" % number)
    progress.line(b"x" * (LINE_MAX + 1))
    seen = progress.seen()
    assert len(seen.lines) == LINES_KEPT
    assert (seen.first, seen.lines[0]) == (11, b"11")
    assert len(seen.lines[-1]) == LINE_MAX


def test_long_lines_are_fewer() -> None:
    progress = Progress()
    for _ in range(LINES_KEPT):
        progress.line(b"x" * LINE_MAX)
    seen = progress.seen()
    assert sum(map(len, seen.lines)) == BYTES_KEPT
    assert seen.first + len(seen.lines) == LINES_KEPT
    progress.line(b"")
    assert len(progress.seen().lines) == len(seen.lines) + 1


def test_a_stage_begins_without_bytes() -> None:
    progress = Progress()
    progress.bytes(5, 10)
    progress.stage("next")
    seen = progress.seen()
    assert (seen.stage, seen.done, seen.total) == ("next", 0, 0)


def test_one_that_waits_shows_what_it_waits_for() -> None:
    leader, waiting = Progress(), Progress(run=3)
    leader.stage("fetching")
    leader.line(b"layer")
    waiting.follow(leader)
    leader.failed("no space", "df -h")
    seen = waiting.seen()
    assert (seen.run, seen.state, seen.stage, seen.lines) == (3, "running", "fetching", (b"layer",))
    waiting.follow(None)
    waiting.succeeded()
    assert (waiting.seen().state, waiting.seen().stage) == ("done", "")
    assert (leader.seen().state, leader.seen().failure, leader.seen().fix) == (
        "failed",
        "no space",
        "df -h",
    )


def test_the_board_counts_runs_and_forgets_sandboxes_that_are_gone() -> None:
    board = Board()
    assert board.get("a") is None
    assert board.begin("a").seen().run == 1
    assert board.begin("a").seen().run == 2
    board.begin("b")
    board.keep_only({"b": None})
    assert board.get("a") is None
    assert board.get("b") is not None
