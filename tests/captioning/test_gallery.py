"""The page of pictures, in text and in a real browser."""

import json
import shutil

import pytest
from PIL import Image

from captioning.gallery import gallery
from fairseq_plugins.errors import UserError

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
HOSTILE = '</script><script>document.title = "hacked"</script><img src=x onerror=alert(1)> a dog'
CAPTIONS = {1: "a red square", 2: "a blue dog", 3: "two green cats", 4: HOSTILE}
REFERENCES = {
    1: ["a red square", "a square that is red"],
    2: ["a blue cat on grass", "the cat is blue"],
    3: ["two green cats sit", "green cats"],
    4: ["a brown dog", "a dog"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    for image, colour in ((1, "red"), (2, "blue"), (3, "green")):
        Image.new("RGB", (60, 40), colour).save(folder / f"{image}.png")
    (folder / "4.png").write_bytes(b"broken")
    rows = [{"image_id": i, "caption": c} for i, c in CAPTIONS.items()]
    (folder / "results.json").write_text(json.dumps(rows))
    images = [{"id": i, "file_name": f"{i}.png"} for i in CAPTIONS]
    texts = [(i, c) for i, group in REFERENCES.items() for c in group]
    notes = [{"id": n, "image_id": i, "caption": c} for n, (i, c) in enumerate(texts)]
    (folder / "notes.json").write_text(json.dumps({"images": images, "annotations": notes}))
    words = CAPTIONS[1].split()
    maps = [[255, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 255], [9] * 6]
    attention = {"grid": [2, 3], "images": {"1": {"words": words, "maps": maps}}}
    (folder / "attention.json").write_text(json.dumps(attention))
    return folder


def write(files, output, **options):
    gallery(files / "results.json", files, files / "notes.json", output, **options)
    return output.read_text()


def test_page_is_whole_and_says_what_is_missing(files, tmp_path, capsys):
    page = write(files, tmp_path / "g.html", attention=files / "attention.json")
    assert page.count("data:image/jpeg") == 3
    assert "1 pictures cannot be read" in capsys.readouterr().err
    assert page.count("<script>") == 1 and "alert(1)>" not in page
    assert "http://" not in page and "https://" not in page
    assert write(files, tmp_path / "few.html", limit=2).count("data:image/jpeg") == 2


def test_faults_are_one_line(files, tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        gallery(files / "results.json", files / "no", files / "notes.json", tmp_path / "g.html")
    with pytest.raises(UserError, match=r"no\.json"):
        write(files, tmp_path / "g.html", attention=files / "no.json")
    (tmp_path / "r.json").write_text('[{"image_id": 9, "caption": "a"}]')
    with pytest.raises(UserError, match="9"):
        gallery(tmp_path / "r.json", files, files / "notes.json", tmp_path / "g.html")
    assert not (tmp_path / "g.html").exists()


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright to drive a browser")
    if not CHROMIUM:
        pytest.skip("no Chromium: the page is not tried in a browser")
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, files, tmp_path):
    write(files, tmp_path / "g.html", attention=files / "attention.json")
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.faults, page.asked = [], []
    page.on("console", lambda message: page.faults.append(message.text))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto((tmp_path / "g.html").as_uri())
    yield page
    assert page.faults == []
    assert [url[:5] for url in page.asked] == ["file:"] + ["data:"] * (len(page.asked) - 1)
    page.close()


def order(page):
    return page.eval_on_selector_all("article:not([hidden])", "all => all.map(a => a.id)")


def test_sort_and_search(page):
    scores = page.eval_on_selector_all(".score", "all => all.map(s => +s.textContent)")
    assert scores == sorted(scores, reverse=True) and order(page)[0] == "id-3"
    page.select_option("#sort", "worst")
    assert order(page)[0] == "id-4"
    page.select_option("#sort", "id")
    assert order(page) == ["id-1", "id-2", "id-3", "id-4"]
    page.keyboard.press("/")
    page.keyboard.type("Cat")
    assert order(page) == ["id-2", "id-3"] and page.text_content("#count") == "2 of 4"


def test_hostile_caption_is_text(page):
    assert page.title().startswith("results.json")
    assert page.text_content("#id-4 .caption") == HOSTILE
    assert "cannot be read" in page.text_content("#id-4 .gone")


def test_attention_by_keyboard(page):
    page.locator("#id-1 .caption button").first.focus()
    size = page.eval_on_selector("canvas", "c => [c.width, c.height]")
    alpha = (
        "c => [...c.getContext('2d').getImageData(0, 0, 3, 2).data].filter((_, i) => i % 4 == 3)"
    )
    first = page.eval_on_selector("canvas", alpha)
    assert size == [3, 2] and first[0] > 150 and first[1:] == [0] * 5
    box = "e => { const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; }"
    covered = page.eval_on_selector("#id-1 img", box), page.eval_on_selector("canvas", box)
    assert covered[0] == pytest.approx(covered[1])
    page.keyboard.press("ArrowRight")
    assert page.eval_on_selector("canvas", alpha)[5] > 150
    assert page.text_content("[aria-pressed=true]") == "red"
    page.keyboard.press("Escape")
    assert page.locator("canvas").count() == page.locator("[aria-pressed=true]").count() == 0


def test_phone(page):
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("article").first.bounding_box()["width"] > 300
