"""The page in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hopline.ingress.keys import new_key
from hopline_mesh.changes import Change, Context
from hopline_mesh.incident import Evidence, Incident, Suspect, Verdict
from hopline_mesh.out.board import Board
from hopline_mesh.snapshot import Gap
from packages.mesh.tests.chromium import Tab, chromium
from packages.mesh.tests.out.drawn import incident, snapshot, verdict
from packages.mesh.tests.out.serving import serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with chromium() as tab:
        tab.size(1440, 1000)
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    browser.problems.clear()
    browser.asked.clear()
    yield browser
    browser.open("about:blank")


def text(tab: Tab, selector: str) -> str:
    """The text of the first element, as it is shown."""
    return str(tab.eval(f"document.querySelector({selector!r})?.innerText ?? ''"))


def told(board: Board, *, end_s: float | None = None) -> None:
    """Twenty intervals, the last ten of which are an incident."""
    for number in range(20):
        time_s = 1000.0 + 15 * number
        going = [incident(start_s=1150.0, end_s=end_s if number == 19 else None)] if number >= 10 else []
        shown = snapshot(time_s, p99_ms=812.0 if going else 40.0, client_ms=800.0 if going else 41.0)
        board.publish(verdict(time_s, *going), shown, np.array([0.2, 1.4, 0.8, np.nan], np.float32))


def test_incident_is_shown_with_suspects_evidence_and_charts(tab: Tab) -> None:
    with serving(grpc_port=-1) as served:
        served.do(lambda: told(served.board))
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelectorAll('figure.chart svg').length == 2")
        assert text(tab, "#state") == "Anomalous"
        assert text(tab, "#message") == "1 open incident."
        assert text(tab, ".suspects li:first-child a") == "shop/cart"
        rows = tab.eval(
            "[...document.querySelectorAll('.incident tbody tr')].map(row =>"
            " [...row.children].map(cell => cell.innerText.trim()))"
        )
        assert rows[0] == ["p99 latency\nshop/cart", "40 ms", "812 ms", "3.0 ×"]
        assert rows[1][0] == "latency at the caller\nshop/web → shop/cart"
        assert tab.eval("document.querySelector('figure .seen').getAttribute('d').match(/L/g).length") == 19
        assert (
            tab.eval("document.querySelector('figure .expected').getAttribute('d').match(/L/g).length") == 9
        )
        assert tab.eval("[...document.querySelectorAll('.mark text')].map(each => each.textContent)") == [
            "start",
            "start",
        ]
        assert tab.eval("document.querySelectorAll('.node').length") == 4
        assert tab.eval("document.querySelectorAll('.edge').length") == 4
        assert tab.eval("document.querySelectorAll('.edge.blamed').length") == 1
        assert tab.eval("document.title") == "(1) Anomalous · Mesh watch"
        # It goes on by itself: the next verdict comes without a reload.
        served.publish(verdict(1300.0, incident(start_s=1150.0, end_s=1300.0)), snapshot(1300.0))
        tab.wait_for("document.querySelector('#panel .incidents a.over')")
        assert "none open" in text(tab, "#panel")
        assert all(url.startswith(served.url) for url in tab.asked), tab.asked
        assert tab.problems == []


def test_keyboard_and_screen_reader_reach_everything(tab: Tab) -> None:
    with serving(grpc_port=-1) as served:
        served.do(lambda: told(served.board))
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelectorAll('.node').length == 4")
        labels = tab.eval("[...document.querySelectorAll('.node')].map(node => node.ariaLabel)")
        assert labels[1] == ("shop/cart, anomaly score 1.4 × the threshold, suspect 1, calls 1 service")
        assert labels[3] == "shop/db, no anomaly score, calls 0 services"
        described = tab.eval("document.querySelector('figure svg').ariaLabel")
        assert described.startswith("shop/cart: p99 latency, about 40 ms before the incident, about 812 ms")
        tab.eval("document.querySelectorAll('.node')[1].focus()")
        tab.press("Enter")
        tab.wait_for("document.querySelector('.service h2')?.innerText == 'shop/cart'")
        assert tab.eval("document.activeElement.dataset.service") == "shop/cart", "focus stays"
        assert tab.eval("location.hash") == "#service=shop%2Fcart"
        before = tab.eval("document.querySelector('svg.mesh').getAttribute('viewBox')")
        tab.press("+")
        assert tab.eval("document.querySelector('svg.mesh').getAttribute('viewBox')") != before
        tab.press("0")
        assert tab.eval("document.querySelector('svg.mesh').getAttribute('viewBox')") == before
        # All that can be used can be reached with Tab, and has a name.
        unnamed = """[...document.querySelectorAll('a, button, input, [role=button], [role=region]')]
            .filter(each => !(each.ariaLabel || each.textContent.trim() || each.labels?.length
                      || each.getAttribute('aria-labelledby')) || each.tabIndex < 0).length"""
        assert tab.eval(unnamed) == 0
        assert tab.problems == []


def test_hostile_names_are_text_and_nothing_else(tab: Tab) -> None:
    names = (
        "shop/<script>window.harmed=1</script>",
        "shop/<img src=x onerror=window.harmed=1>",
        'shop/"><svg/onload=window.harmed=1>',
        "javascript:window.harmed=1//",
        "shop/evil\u202egnp.exe\n\x00",
        "__proto__",
        "shop/" + "x" * 5000,
        "shop/half\ud800",
    )
    calls = tuple((names[0], name) for name in names[1:])
    evidence = tuple(
        Evidence("<b>feature</b>_ms", name, names[0], 1.0, 2.0 + number, 1.5)
        for number, name in enumerate(names[1:])
    )
    suspects = tuple(Suspect(name, 2.0, None, evidence) for name in names)
    going = Incident("<script>id</script>", 1000.0, None, 2.0, suspects)
    said = Verdict(1000.0, "anomalous", 2.0, (going,), names[:2], (Gap(names[0], names[1]),))
    with serving(grpc_port=-1) as served:
        served.publish(said, snapshot(1000.0, names, calls), np.full(len(names), 1.5, np.float32))
        tab.open(f"{served.url}/")
        tab.wait_for("document.body?.dataset.shown == '1000'")
        for name in names:
            tab.eval(
                f"document.querySelectorAll('.node')[{names.index(name)}].dispatchEvent(new Event('click'))"
            )
            tab.wait_for("document.querySelector('.service dl, .service .close')")
        assert tab.eval("window.harmed ?? null") is None
        assert tab.eval("document.scripts.length") == 1
        assert tab.eval("document.querySelectorAll('img:not(header img), b b').length") == 0
        shown = text(tab, "body")
        assert "<script>window.harmed=1</script>" in shown
        assert "\u202e" not in shown
        links = tab.eval("[...document.querySelectorAll('a')].map(link => link.getAttribute('href'))")
        assert all(link.startswith("#") for link in links)
        assert tab.eval("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        assert tab.problems == []


def test_an_incident_says_what_happened_and_keeps_its_name(tab: Tab) -> None:
    with serving(grpc_port=-1) as served:
        served.do(lambda: setattr(served.board, "links", ("traces=https://t/?s={service}",)))
        served.publish(verdict(1000.0, incident()), snapshot(1000.0))
        served.publish(verdict(1015.0, incident(service="shop/db")), snapshot(1015.0))
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelector('.suspects')")
        assert text(tab, "#incident-title") == "shop/cart"
        assert text(tab, ".headline") == "now suspected: shop/db: p99 latency 40 ms → 812 ms"
        assert text(tab, ".incidents .what") == text(tab, ".headline")
        assert text(tab, ".suspects li:first-child .number") == "71 %"
        assert tab.eval("document.querySelector('.links a').href") == "https://t/?s=shop%2Fdb"
        zone = tab.eval("Intl.DateTimeFormat().resolvedOptions().timeZone")
        assert zone in text(tab, "#facts")
        assert tab.problems == []


def test_an_incident_is_marked_and_unmarked(tab: Tab) -> None:
    with serving(grpc_port=-1) as served:
        served.publish(verdict(1000.0, incident()), snapshot(1000.0))
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelectorAll('.marks button').length == 3")
        tab.eval("document.querySelectorAll('.marks button')[1].click()")
        tab.wait_for("document.querySelector('.marks b')?.innerText == 'Muted'")
        assert served.do(lambda: served.board.is_muted("i-1"))
        assert tab.eval("document.querySelector('.incidents a').className") == "over"
        tab.eval("document.querySelector('.marks button').click()")
        tab.wait_for("document.querySelectorAll('.marks button').length == 3")
        assert not served.do(lambda: served.board.is_muted("i-1"))
        assert tab.problems == []


def test_planned_changes_are_listed_after_they_ended(tab: Tab) -> None:
    over = Change("rollout", "shop/cart", 900.0, 950.0, "new version")
    with serving(grpc_port=-1) as served:
        served.do(lambda: served.board.publish(verdict(1000.0), snapshot(1000.0), context=Context((over,))))
        served.publish(verdict(1015.0), snapshot(1015.0))
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelector('.changes li')")
        assert text(tab, ".changes li").startswith("shop/cart rollout: new version")
        assert "lasted 50 s" in text(tab, ".changes .when")


def test_a_change_of_a_workload_and_its_services_is_one_line(tab: Tab) -> None:
    names = ("shop/cart-app", "shop/cart")
    changes = tuple(Change("rollout", name, 900.0, 950.0, "new version") for name in names)
    other = Change("rollout", "shop/pay", 910.0, 950.0, "new version")
    context = Context((*changes, other))
    with serving(grpc_port=-1) as served:
        served.do(lambda: served.board.publish(verdict(1000.0), snapshot(1000.0), context=context))
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelectorAll('.changes li').length == 2")
        assert text(tab, ".changes li:last-child").startswith("shop/cart-app, shop/cart rollout")


def test_columns_that_a_mesh_need_not_have_are_no_notice_and_no_empty_column(tab: Tab) -> None:
    def seen(*gaps: Gap) -> Verdict:
        return Verdict(1000.0, "normal", 0.4, (), gaps=gaps)

    never, lost = Gap("node.connections", "no series"), Gap("node.cpu_cores", "no series any more")
    with serving(grpc_port=-1) as served:
        served.publish(seen(never), snapshot(1000.0))
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelectorAll('#table tbody tr').length == 4")
        assert text(tab, "#notices") == ""
        heads = tab.eval("[...document.querySelectorAll('#table thead th')].map(each => each.innerText)")
        assert heads == ["Service", "Anomaly score", "p99 latency"]
        assert tab.eval("document.querySelectorAll('#table tbody tr:first-child > *').length") == 3
        assert "open connections" in text(tab, "#table p.quiet")
        required = Gap("node.request_rate", "no series")
        served.publish(seen(never, lost, required), snapshot(1000.0))
        tab.open(f"{served.url}/?again")
        tab.wait_for("document.querySelector('#notices summary')")
        assert text(tab, "#notices summary") == "Not measured: node.cpu_cores, node.request_rate"
        assert tab.problems == []


def test_on_a_phone_what_happened_comes_before_the_graph(tab: Tab) -> None:
    with serving(grpc_port=-1) as served:
        served.publish(verdict(1000.0, incident()), snapshot(1000.0))
        tab.size(400, 800)
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelector('.suspects')")
        top = "document.querySelector({!r}).getBoundingClientRect().top"
        assert tab.eval(top.format(".suspects")) < tab.eval(top.format("#graph"))
        assert tab.eval("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        tab.size(1440, 1000)


def test_what_the_watch_cannot_say_is_said(tab: Tab) -> None:
    clock = [2000.0]
    with serving(Board(clock=lambda: clock[0]), grpc_port=-1) as served:
        tab.open(f"{served.url}/")
        tab.wait_for("document.body?.dataset.shown == 'none'")
        assert text(tab, "#state") == "Waiting"
        assert text(tab, "#nothing").startswith("The first interval since the start")
        served.publish(verdict(1985.0), snapshot(1985.0, (), ()))
        tab.wait_for("document.querySelector('#state').innerText == 'Normal'")
        assert text(tab, "#nothing").startswith("The newest interval has no service.")
        served.publish(verdict(2000.0, state="learning"), snapshot(2000.0))
        tab.wait_for("document.querySelector('#state').innerText == 'Learning'")
        assert "no verdict so far" in text(tab, "#message")
        tab.wait_for("document.querySelector('#nothing').hidden")
        served.publish(verdict(2015.0, state="blind"))
        tab.wait_for("document.querySelector('#state').innerText == 'Blind'")
        assert "prometheus timed out" in text(tab, "#notices").replace("\n", " ")
        served.publish(verdict(2030.0), snapshot(2030.0))
        tab.wait_for("document.querySelector('#state').innerText == 'Normal'")
        clock[0] += 600.0
        served.publish(verdict(2031.0), snapshot(2031.0))
        served.do(lambda: setattr(served.board, "published_s", 2000.0))
        tab.open(f"{served.url}/?again")
        tab.wait_for("document.querySelector('#state')?.innerText == 'No news'")
        assert text(tab, "#message") == "No verdict for 10 min."
        assert tab.problems == []
    tab.wait_for("document.querySelector('#state').innerText == 'Not reachable'")


def test_incident_that_is_not_kept_any_more_is_reported(tab: Tab) -> None:
    with serving(grpc_port=-1) as served:
        served.publish(verdict(1000.0), snapshot(1000.0))
        tab.open(f"{served.url}/#incident=gone%3Cb%3E")
        tab.wait_for("document.querySelector('#panel')?.innerText.includes('gone<b> is not stored')")


def test_of_a_large_mesh_two_hundred_services_are_drawn(tab: Tab) -> None:
    names = tuple(f"shop/service-{number}" for number in range(3000))
    calls = tuple((names[number // 3], names[number]) for number in range(1, 3000))
    scores = np.linspace(0.0, 0.7, 3000, dtype=np.float32)
    with serving(grpc_port=-1) as served:
        served.publish(verdict(1000.0), snapshot(1000.0, names, calls), scores)
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelectorAll('.node').length == 200")
        assert text(tab, "#graph-title").startswith("Live graph: 200 of 3000 services")
        apart = """(() => {
            const seen = new Set();
            for (const node of document.querySelectorAll('.node')) seen.add(node.getAttribute('transform'));
            return seen.size;
        })()"""
        assert tab.eval(apart) == 200, "nothing stands on anything else"
        tab.eval("document.querySelector('#name').value = 'shop/service-5'")
        tab.eval("document.querySelector('#find').requestSubmit()")
        tab.wait_for("document.querySelector('.service h2')?.innerText == 'shop/service-5'")
        assert "around shop/service-5" in text(tab, "#graph-title")
        tab.eval("document.querySelector('#name').value = 'absent'")
        tab.eval("document.querySelector('#find').requestSubmit()")
        tab.wait_for("document.querySelector('#graph-title').innerText.includes('highest scores')")
        assert tab.eval("document.querySelectorAll('.node').length") == 200
        assert text(tab, "#state") != "Not reachable"


def test_key_is_requested_and_kept_for_the_tab_only(tab: Tab, tmp_path: Path) -> None:
    key = new_key()
    clients = tmp_path / "clients.toml"
    clients.write_text(
        f'[clients.ops]\nread = true\nkeys = [{{ id = "{key.id}", sha256 = "{key.sha256}" }}]\n'
    )
    with serving(grpc_port=-1, clients_file=clients) as served:
        served.publish(verdict(1000.0), snapshot(1000.0))
        tab.open(f"{served.url}/")
        tab.wait_for("document.querySelector('#key')")
        tab.eval(f"document.querySelector('#key').value = {key.text!r}")
        tab.eval("document.querySelector('form.key').requestSubmit()")
        tab.wait_for("document.querySelector('#state').innerText == 'Normal'")
        assert tab.eval("localStorage.length") == 0
        assert key.text not in tab.eval("document.documentElement.outerHTML")
