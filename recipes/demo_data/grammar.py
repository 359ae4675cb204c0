"""The grammar that wrote the demo's English-Vietnamese corpus.

``python -m recipes.demo_data.grammar FOLDER`` writes the six files beside this one again, byte for
byte. The sentences are everyday ones, and the two languages differ in word order: time comes first
in Vietnamese, adjectives follow the noun and its classifier, some verbs embrace their object.

Every sentence names its combinations of content words (verb with object, adjective with noun,
subject with predicate). One combination in eight, by a fixed hash, is held out: a sentence with a
held-out combination goes to valid or test, all others to train. So the test asks for combinations
never seen, of words that were.
"""

import random
import sys
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

SIZES = {"train": 4000, "valid": 200, "test": 200}


def _rows(table: str) -> list[list[str]]:
    return [line.split(",") for line in table.strip().splitlines()]


# English, Vietnamese, person: 1 (I), 3 (third singular), 0 (all others)
SUBJECTS = _rows(
    """
I,tôi,1
you,bạn,0
he,anh ấy,3
she,cô ấy,3
we,chúng tôi,0
they,họ,0
my mother,mẹ tôi,3
my father,bố tôi,3
my grandmother,bà tôi,3
my grandfather,ông tôi,3
my older sister,chị gái tôi,3
my younger brother,em trai tôi,3
my friends,các bạn tôi,0
the teacher,cô giáo,3
the farmer,bác nông dân,3
the students,các sinh viên,0
the children,bọn trẻ,0
our neighbour,hàng xóm của chúng tôi,3
Lan,Lan,3
Nam,Nam,3
"""
)
PEOPLE = [s for s in SUBJECTS if s[1] not in ("tôi", "bạn", "anh ấy", "cô ấy", "chúng tôi", "họ")]

# singular, plural ("" for uncountable), Vietnamese, classifier ("" for uncountable), kinds
NOUNS = [
    (*fields[:4], set(fields[4].split()))
    for fields in _rows(
        """
book,books,sách,quyển,thing read
letter,letters,thư,bức,read
newspaper,newspapers,báo,tờ,read
story,stories,chuyện,câu,read
picture,pictures,tranh,bức,thing art
shirt,shirts,áo,cái,thing cloth
dress,dresses,váy,chiếc,thing cloth
coat,coats,áo khoác,chiếc,thing cloth
table,tables,bàn,cái,thing furniture
chair,chairs,ghế,cái,thing furniture
lamp,lamps,đèn,cái,thing furniture machine
clock,clocks,đồng hồ,cái,thing machine
bicycle,bicycles,xe đạp,chiếc,thing machine
car,cars,ô tô,chiếc,thing machine
computer,computers,máy tính,cái,thing machine
bowl,bowls,bát,cái,thing dish
cup,cups,cốc,cái,thing dish
knife,knives,dao,con,thing dish
door,doors,cửa,cánh,shut
window,windows,cửa sổ,cái,shut
box,boxes,hộp,cái,thing shut
orange,oranges,cam,quả,food fruit
mango,mangoes,xoài,quả,food fruit
banana,bananas,chuối,quả,food fruit
egg,eggs,trứng,quả,food
cake,cakes,bánh,cái,food
rice,,cơm,,meal
soup,,canh,,meal
fish,,cá,,meal
chicken,,thịt gà,,meal
tea,,trà,,drink
coffee,,cà phê,,drink
milk,,sữa,,drink
water,,nước,,drink
dog,dogs,chó,con,animal pet
cat,cats,mèo,con,animal pet
bird,birds,chim,con,animal
horse,horses,ngựa,con,animal
cow,cows,bò,con,animal
buffalo,buffaloes,trâu,con,animal
English,,tiếng Anh,,subject
mathematics,,toán,,subject
history,,lịch sử,,subject
music,,âm nhạc,,subject
"""
    )
]

# base, third person, past, -ing, Vietnamese (~ stands for the object), kinds of object, places
VERBS = [
    (*fields[:5], set(fields[5].split()), fields[6].split())
    for fields in _rows(
        """
read,reads,read,reading,đọc ~,read,home garden library park
write,writes,wrote,writing,viết ~,read,home library school
buy,buys,bought,buying,mua ~,thing food animal,market shop
sell,sells,sold,selling,bán ~,thing food animal,market shop
eat,eats,ate,eating,ăn ~,food meal,home kitchen school
cook,cooks,cooked,cooking,nấu ~,meal,kitchen home
drink,drinks,drank,drinking,uống ~,drink,home kitchen garden office
wash,washes,washed,washing,rửa ~,dish fruit,kitchen home
wash,washes,washed,washing,giặt ~,cloth,home
wear,wears,wore,wearing,mặc ~,cloth,school office
draw,draws,drew,drawing,vẽ ~,animal art furniture,school park garden
repair,repairs,repaired,repairing,sửa ~,machine furniture,home shop garden
open,opens,opened,opening,mở ~,shut,home school office
close,closes,closed,closing,đóng ~,shut,home school office
feed,feeds,fed,feeding,cho ~ ăn,animal,garden park
take,takes,took,taking,đưa ~ đi dạo,pet,park garden
look for,looks for,looked for,looking for,tìm ~,thing animal,garden park shop
learn,learns,learned,learning,học ~,subject,school library home
teach,teaches,taught,teaching,dạy ~,subject,school
clean,cleans,cleaned,cleaning,lau ~,furniture shut,home school kitchen
"""
    )
]
AFTER_OBJECT = {"take": " for a walk"}

ADJECTIVES = [
    (*fields[:2], set(fields[2].split()))
    for fields in _rows(
        """
red,đỏ,cloth furniture machine dish shut
white,trắng,cloth furniture machine dish animal shut
black,đen,cloth furniture machine animal
yellow,vàng,cloth furniture fruit shut
big,to,thing animal food shut
small,nhỏ,thing animal food shut
new,mới,thing read
old,cũ,thing read shut
beautiful,đẹp,cloth furniture art animal
cheap,rẻ,thing food
expensive,đắt,thing
heavy,nặng,furniture machine
sweet,ngọt,fruit
fresh,tươi,fruit
long,dài,read
interesting,hay,read
"""
    )
]

PLACES = {
    "home": ("at home", "ở nhà"),
    "garden": ("in the garden", "trong vườn"),
    "library": ("in the library", "trong thư viện"),
    "park": ("in the park", "trong công viên"),
    "market": ("at the market", "ở chợ"),
    "shop": ("in the shop", "trong cửa hàng"),
    "kitchen": ("in the kitchen", "trong bếp"),
    "school": ("at school", "ở trường"),
    "office": ("in the office", "trong văn phòng"),
}
GOALS = [
    ("the market", "chợ"),
    ("school", "học"),
    ("the library", "thư viện"),
    ("the beach", "biển"),
    ("the hospital", "bệnh viện"),
    ("the village", "làng"),
]
RIDES = [
    ("by bus", "xe buýt"),
    ("by train", "tàu hỏa"),
    ("by car", "ô tô"),
    ("by plane", "máy bay"),
]
TIMES = {
    "habit": [("every day", "mỗi ngày"), ("every morning", "mỗi sáng"), ("every week", "mỗi tuần")],
    "past": [("yesterday", "hôm qua"), ("last week", "tuần trước"), ("last night", "tối qua")],
    "future": [("tomorrow", "ngày mai"), ("next week", "tuần sau"), ("tonight", "tối nay")],
    "now": [("now", "bây giờ")],
}
NUMBERS = [("two", "hai"), ("three", "ba"), ("four", "bốn"), ("five", "năm"), ("ten", "mười")]
JOBS = [("doctor", "bác sĩ"), ("singer", "ca sĩ"), ("driver", "lái xe"), ("worker", "công nhân")]
MOODS = [("happy", "vui"), ("tired", "mệt"), ("hungry", "đói"), ("sad", "buồn"), ("busy", "bận")]
WEATHER = [("hot", "nóng"), ("cold", "lạnh"), ("sunny", "nắng"), ("windy", "nhiều gió")]
SPOTS = [("on", "trên"), ("under", "dưới"), ("behind", "sau"), ("in front of", "trước")]

Sentence = tuple[str, str, list[str]]  # English, Vietnamese, combinations


def _be(person: str, past: bool = False) -> str:
    if past:
        return "were" if person == "0" else "was"
    return {"1": "am", "3": "is", "0": "are"}[person]


def _do(person: str) -> str:
    return "does" if person == "3" else "do"


class Grammar:
    """Draws sentences; every template is a method that starts with ``say_``."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.pick: Callable = self.rng.choice
        names = sorted(name for name in dir(self) if name.startswith("say_"))
        self.templates = [getattr(self, name) for name in names]

    def sentences(self) -> Iterator[Sentence]:
        """Yield sentences without end, all templates alike often."""
        while True:
            for template in self.templates:
                english, vietnamese, combinations = template()
                end = english[-1] if english[-1] in ".?" else "."
                english, vietnamese = english.rstrip(".?") + end, vietnamese + end
                yield (
                    english[0].upper() + english[1:],
                    unicodedata.normalize("NFC", vietnamese[0].upper() + vietnamese[1:]),
                    combinations,
                )

    def thing(self, kinds: set[str], definite: bool = False) -> tuple[str, str, str, list[str]]:
        """Return a noun phrase: English, Vietnamese, its noun, combinations."""
        single, plural, vi, classifier, own = self.pick([n for n in NOUNS if n[4] & kinds])
        if not plural:
            return single, vi, single, []
        adjective_en, adjective_vi, combinations = "", "", []
        if self.rng.random() < 0.5 and (fit := [a for a in ADJECTIVES if a[2] & own]):
            word, word_vi, _ = self.pick(fit)
            adjective_en, adjective_vi = f"{word} ", f" {word_vi}"
            combinations = [f"{word} {single}"]
        core_en, core_vi = adjective_en + single, f"{classifier} {vi}{adjective_vi}"
        form = self.pick(
            ["the", "my", "this"] if definite else ["a", "the", "my", "number", "this"]
        )
        if form == "a":
            article = "an" if core_en[0] in "aeiou" else "a"
            return f"{article} {core_en}", f"một {core_vi}", single, combinations
        if form == "number":
            number, number_vi = self.pick(NUMBERS)
            return (
                f"{number} {adjective_en}{plural}",
                f"{number_vi} {core_vi}",
                single,
                combinations,
            )
        after = {"the": "", "my": " của tôi", "this": " này"}[form]
        return f"{form} {core_en}", core_vi + after, single, combinations

    def action(self) -> tuple[tuple, str, str, list[str]]:
        """Return a verb with its object: verb, English object, Vietnamese phrase, combinations."""
        verb = self.pick(VERBS)
        english, vietnamese, noun, combinations = self.thing(verb[5])
        english += AFTER_OBJECT.get(verb[0], "")
        return verb, english, verb[4].replace("~", vietnamese), [*combinations, f"{verb[0]} {noun}"]

    def say_habit(self) -> Sentence:
        (en, vi, person), (verb, thing, phrase, c) = self.pick(SUBJECTS), self.action()
        when, when_vi = self.pick(TIMES["habit"])
        return (
            f"{en} {verb[1 if person == '3' else 0]} {thing} {when}",
            f"{when_vi} {vi} {phrase}",
            c,
        )

    def say_past(self) -> Sentence:
        (en, vi, _), (verb, thing, phrase, c) = self.pick(SUBJECTS), self.action()
        when, when_vi = self.pick(TIMES["past"])
        return f"{en} {verb[2]} {thing} {when}", f"{when_vi} {vi} đã {phrase}", c

    def say_future(self) -> Sentence:
        (en, vi, _), (verb, thing, phrase, c) = self.pick(SUBJECTS), self.action()
        when, when_vi = self.pick(TIMES["future"])
        return f"{en} will {verb[0]} {thing} {when}", f"{when_vi} {vi} sẽ {phrase}", c

    def say_now(self) -> Sentence:
        (en, vi, person), (verb, thing, phrase, c) = self.pick(SUBJECTS), self.action()
        place, place_vi = PLACES[self.pick(verb[6])]
        return f"{en} {_be(person)} {verb[3]} {thing} {place}", f"{vi} đang {phrase} {place_vi}", c

    def say_not(self) -> Sentence:
        (en, vi, person), (verb, thing, phrase, c) = self.pick(SUBJECTS), self.action()
        return f"{en} {_do(person)} not want to {verb[0]} {thing}", f"{vi} không muốn {phrase}", c

    def say_modal(self) -> Sentence:
        (en, vi, _), (verb, thing, phrase, c) = self.pick(SUBJECTS), self.action()
        modal, modal_vi = self.pick([("can", "có thể"), ("must", "phải"), ("should", "nên")])
        return f"{en} {modal} {verb[0]} {thing}", f"{vi} {modal_vi} {phrase}", c

    def say_question(self) -> Sentence:
        (en, vi, person), (verb, thing, phrase, c) = self.pick(SUBJECTS[1:]), self.action()
        return f"{_do(person)} {en} want to {verb[0]} {thing}?", f"{vi} có muốn {phrase} không", c

    def say_where(self) -> Sentence:
        (en, vi, _), (verb, thing, phrase, c) = self.pick(SUBJECTS[1:]), self.action()
        return f"where did {en} {verb[0]} {thing}?", f"{vi} đã {phrase} ở đâu", c

    def say_who(self) -> Sentence:
        verb, thing, phrase, c = self.action()
        return f"who is {verb[3]} {thing}?", f"ai đang {phrase}", c

    def say_when(self) -> Sentence:
        (en, vi, _), (verb, thing, phrase, c) = self.pick(SUBJECTS[1:]), self.action()
        return f"when will {en} {verb[0]} {thing}?", f"khi nào {vi} sẽ {phrase}", c

    def say_because(self) -> Sentence:
        (en, vi, person), (verb, thing, phrase, c) = self.pick(SUBJECTS), self.action()
        mood, mood_vi = self.pick(MOODS)
        pronoun, pronoun_vi = {"1": ("I", "tôi"), "3": ("she", "cô ấy"), "0": ("they", "họ")}[
            person
        ]
        if en in ("you", "we", "he", "my father", "my grandfather", "my younger brother", "Nam"):
            pronoun, pronoun_vi = (en, vi) if en in ("you", "we") else ("he", "anh ấy")
        return (
            f"{en} did not {verb[0]} {thing} because {pronoun} {_be(person, past=True)} {mood}",
            f"{vi} đã không {phrase} vì {pronoun_vi} {mood_vi}",
            [*c, f"{mood} {verb[0]}"],
        )

    def say_travel(self) -> Sentence:
        en, vi, _ = self.pick(SUBJECTS)
        (goal, goal_vi), (ride, ride_vi) = self.pick(GOALS), self.pick(RIDES)
        when, when_vi = self.pick(TIMES["past"])
        c = [f"{goal} {ride}", f"{en} {goal}"]
        return (
            f"{en} went to {goal} {ride} {when}",
            f"{when_vi} {vi} đã đi {goal_vi} bằng {ride_vi}",
            c,
        )

    def say_have(self) -> Sentence:
        (en, vi, person), (single, plural, noun_vi, classifier, _) = (
            self.pick(SUBJECTS),
            self.pick([n for n in NOUNS if n[4] & {"thing", "animal"}]),
        )
        number, number_vi = self.pick(NUMBERS)
        has = "has" if person == "3" else "have"
        c = [f"{en} {single}", f"{number} {single}"]
        return f"{en} {has} {number} {plural}", f"{vi} có {number_vi} {classifier} {noun_vi}", c

    def say_there(self) -> Sentence:
        single, plural, noun_vi, classifier, _ = self.pick([n for n in NOUNS if "animal" in n[4]])
        (number, number_vi), key = self.pick(NUMBERS), self.pick(["garden", "park", "market"])
        place, place_vi = PLACES[key]
        c = [f"{number} {single}", f"{key} {single}"]
        english = f"there are {number} {plural} {place}"
        return english, f"có {number_vi} {classifier} {noun_vi} {place_vi}", c

    def say_compare(self) -> Sentence:
        kinds = self.pick([{"animal"}, {"furniture"}, {"machine"}, {"dish"}])
        a, a_vi, first, c = self.thing(kinds, definite=True)
        b, b_vi, second, d = self.thing(kinds, definite=True)
        more, more_vi = self.pick(
            [("bigger", "to hơn"), ("smaller", "nhỏ hơn"), ("older", "cũ hơn")]
        )
        if kinds == {"animal"} and more == "older":
            more_vi = "già hơn"
        return f"{a} is {more} than {b}", f"{a_vi} {more_vi} {b_vi}", [*c, *d, f"{first} {second}"]

    def say_spot(self) -> Sentence:
        a, a_vi, first, c = self.thing({"pet", "dish"}, definite=True)
        b, b_vi, second, d = self.thing({"furniture"}, definite=True)
        spot, spot_vi = self.pick(SPOTS)
        english, vietnamese = f"{a} is {spot} {b}", f"{a_vi} ở {spot_vi} {b_vi}"
        return english, vietnamese, [*c, *d, f"{first} {second}"]

    def say_job(self) -> Sentence:
        (en, vi, person), (job, job_vi) = self.pick(PEOPLE), self.pick(JOBS)
        other, other_vi, _ = self.pick(PEOPLE)
        if person != "3" or "teacher" in en or "farmer" in en:
            en, vi = "Lan", "Lan"
        english = f"{en} is a {job} and knows {other}"
        return english, f"{vi} là {job_vi} và quen {other_vi}", [f"{en} {job}", f"{job} {other}"]

    def say_mood(self) -> Sentence:
        (en, vi, person), (mood, mood_vi) = self.pick(SUBJECTS), self.pick(MOODS)
        weather, weather_vi = self.pick(WEATHER)
        english = f"{en} {_be(person)} very {mood} because it is {weather} today"
        c = [f"{en} {mood}", f"{mood} {weather}"]
        return english, f"{vi} rất {mood_vi} vì hôm nay trời {weather_vi}", c


def held_out(combination: str) -> bool:
    """Return whether *combination* is kept from the training set.

    With this salt, every word of the held-out sentences occurs at least five times in training.
    """
    return zlib.crc32(f"3 {combination}".encode()) % 8 == 0


def split(seed: int = 1) -> dict[str, list[tuple[str, str]]]:
    """Return set -> pairs, no source sentence twice."""
    sets: dict[str, dict[str, str]] = {name: {} for name in SIZES}
    for english, vietnamese, combinations in Grammar(seed).sentences():
        name = "train"
        if any(map(held_out, combinations)):
            name = "valid" if zlib.crc32(english.encode()) % 2 else "test"
        if len(sets[name]) < SIZES[name]:
            sets[name].setdefault(english, vietnamese)
        elif all(len(pairs) == SIZES[other] for other, pairs in sets.items()):
            return {name: list(pairs.items()) for name, pairs in sets.items()}
    raise AssertionError("sentences() does not end")


def write(folder: Path) -> None:
    """Write {train,valid,test}.{en,vi} to *folder*."""
    for name, pairs in split().items():
        for language, lines in zip(("en", "vi"), zip(*pairs, strict=True), strict=True):
            text = "".join(line + "\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
