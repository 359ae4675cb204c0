"""The grammar that wrote the demo's English-Vietnamese corpus.

``python -m recipes.demo_data.grammar FOLDER`` writes the six files beside this one again, byte for
byte. The sentences are everyday ones. Each has one translation, in another order: time, place and
condition come first in Vietnamese; adjectives, "this" and owners follow the noun and its
classifier; question words stay in place; some verbs embrace their object.

Held out: every sentence names its combinations of content words (verb with object, adjective with
noun, person with job, ...). A fixed hash holds out one combination in eight: sentences that have
such a combination go to valid or test, all others to train. So the test asks for combinations that
training lacks. Valid and test keep only sentences whose every word occurs in train five times.
"""

import random
import sys
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace as Entry

SIZES = {"train": 4000, "valid": 200, "test": 200}
LONGEST = 16  # words of an English sentence

Sentence = tuple[str, str, list[str]]  # English, Vietnamese, combinations
Slots = dict[str, tuple[str, ...]]  # what fills {name} in English and in Vietnamese


def _rows(table: str, separator: str = ",") -> list[list[str]]:
    return [[field.strip() for field in row.split(separator)] for row in table.strip().split("\n")]


def _entries(fields: str, table: str) -> list[Entry]:
    entries = [Entry(**dict(zip(fields.split(), row, strict=True))) for row in _rows(table)]
    for entry in entries:
        entry.kinds = set(entry.kinds.split())
    return entries


# English=Vietnamese=pronoun=what Vietnamese says for it; "child": does not do what adults do
SUBJECTS = [
    Entry(**dict(zip(("en", "vi", "pronoun", "echo", "age"), entry.split("="), strict=True)))
    for row in _rows("""
I=tôi=I=tôi=, we=chúng tôi=we=chúng tôi=, you=bạn=you=bạn=, he=anh ấy=he=anh ấy=
she=cô ấy=she=cô ấy=, they=họ=they=họ=, my mother=mẹ tôi=she=mẹ=, my father=bố tôi=he=bố=
my grandmother=bà tôi=she=bà=, my grandfather=ông tôi=he=ông=, my sister=chị gái tôi=she=chị ấy=
my younger brother=em trai tôi=he=em ấy=child, my aunt=dì tôi=she=dì=, my uncle=chú tôi=he=chú=
his wife=vợ anh ấy=she=cô ấy=, her husband=chồng cô ấy=he=anh ấy=, the teacher=cô giáo=she=cô ấy=
the farmer=bác nông dân=he=bác ấy=, Lan=Lan=she=cô ấy=, Nam=Nam=he=anh ấy=
my friends=các bạn của tôi=they=họ=, the students=các sinh viên=they=họ=
the children=bọn trẻ=they=chúng=child
""") for entry in row
]  # fmt: skip
OWN = {"I": "my", "we": "our", "you": "your", "he": "his", "she": "her", "they": "their"}
OWN_VI = {"I": "của tôi", "we": "của chúng tôi", "you": "của bạn"}  # all others: của mình
AGREE = {"is": "am is are", "was": "was was were", "aux": "do does do", "has": "have has have",
         "like": "like likes like"}  # fmt: skip


def plural(noun: str) -> str:
    """Return the plural of an English noun."""
    if noun.endswith(("ry", "fe")):
        return noun[:-1] + "ies" if noun.endswith("y") else noun[:-2] + "ves"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh", "ngo", "lo")) else "s")


def _noun(en: str, vi: str, classed: bool, row: str) -> Entry:
    many = plural(en) if classed else en
    bare = vi.partition(" ")[2] if classed else vi
    return Entry(
        en=en, many=many, vi=bare, full=vi, classed=classed, kinds={*row.split(), en}, row=row
    )


# kinds, English=classifier noun; uncountable ones below. Nouns of one row can be compared.
NOUNS = [
    _noun(en, vi, classed, kinds)
    for classed, table in ((True, """
goods text, book=quyển sách, newspaper=tờ báo
goods paper, notebook=quyển vở, dictionary=quyển từ điển, pen=cái bút, bag=cái túi
text written, letter=bức thư, story=câu chuyện, poem=bài thơ
song, song=bài hát
film, film=bộ phim
goods drawn, picture=bức tranh, flower=bông hoa, kite=cái diều
goods cloth, shirt=cái áo, coat=cái áo khoác, sweater=cái áo len
goods hat, hat=cái mũ
goods dish, bowl=cái bát, plate=cái đĩa, cup=cái cốc, pot=cái nồi, knife=con dao
goods machine, clock=cái đồng hồ, lamp=cái đèn, fan=cái quạt, phone=cái điện thoại
asset furniture, table=cái bàn, chair=cái ghế, bed=cái giường, cupboard=cái tủ
asset vehicle, bicycle=chiếc xe đạp, motorbike=chiếc xe máy, car=chiếc ô tô
asset drawn, house=ngôi nhà, boat=chiếc thuyền
shut, door=cánh cửa, window=cái cửa sổ
goods shut, box=cái hộp
fruit, orange=quả cam, mango=quả xoài, banana=quả chuối, apple=quả táo
food, egg=quả trứng, cake=cái bánh
animal walked, dog=con chó, horse=con ngựa
animal, cat=con mèo, bird=con chim, duck=con vịt
animal farm, cow=con bò, buffalo=con trâu, pig=con lợn
"""), (False, """
meal, rice=cơm, soup=canh
meal raw, fish=cá, chicken=thịt gà, beef=thịt bò, vegetables=rau
drink, tea=trà, coffee=cà phê, milk=sữa, water=nước
subject, English=tiếng Anh, French=tiếng Pháp, mathematics=toán, history=lịch sử, music=nhạc
sport, football=bóng đá, volleyball=bóng chuyền, badminton=cầu lông, chess=cờ
""")) for kinds, *entries in _rows(table) for en, vi in (entry.split("=") for entry in entries)
]  # fmt: skip

# words: base, third person, past, participle, -ing. vi: ~ stands for the object. forms of the
# object: a, the, this (h), that (d), own (o), my, number (n); habit: those of what is done daily.
# flags: by adults (A), left undone for a reason (R) or for rain (r), liked (L), asked for with
# "what" (W), gone somewhere for (G).
VERBS = _entries(
    "words vi kinds forms habit flags places",
    """
read reads read read reading, đọc ~, text written, athdno, an, RLWG, home garden library park
write writes wrote written writing, viết ~, written, athdn, an, RLW, home library school
sing sings sang sung singing, hát ~, song, athd, a, RW, home school garden
buy buys bought bought buying, mua ~, goods, athdn, , RrWG, market shop
buy buys bought bought buying, mua ~, asset animal, athdn, , A,
buy buys bought bought buying, mua ~, fruit food raw, ahn, an, RrWG, market shop
sell sells sold sold selling, bán ~, goods fruit, athdon, , ArWG, market shop
sell sells sold sold selling, bán ~, asset animal, athdon, , A,
eat eats ate eaten eating, ăn ~, fruit food meal, athdn, an, LW, home kitchen school garden
cook cooks cooked cooked cooking, nấu ~, meal, a, a, RLW, home kitchen
drink drinks drank drunk drinking, uống ~, drink, a, a, LW, home kitchen garden
wash washes washed washed washing, rửa ~, dish, thdon, to, R, home kitchen
wash washes washed washed washing, rửa ~, vehicle fruit, thdon, , R, home garden
wash washes washed washed washing, giặt ~, cloth, thdon, to, R, home
wear wears wore worn wearing, mặc ~, cloth, ahdo, ao, , school park garden
wear wears wore worn wearing, đội ~, hat, ahdo, ao, , school park garden
draw draws drew drawn drawing, vẽ ~, animal drawn, athdn, an, RLW, school park garden home
repair repairs repaired repaired repairing, sửa ~, machine furniture vehicle, thdom, , ARW, home
open opens opened opened opening, mở ~, shut, thd, t, , home school
close closes closed closed closing, đóng ~, shut, thd, t, , home school
feed feeds fed fed feeding, cho ~ ăn, animal, thdom, to, RL, garden home
take takes took taken taking, dắt ~ đi dạo, walked, thdom, to, RrG, park garden
look_for looks_for looked_for looked_for looking_for, tìm ~, goods animal, om, , W, home garden
learn learns learned learned learning, học ~, subject, a, a, RLWG, school library home
teach teaches taught taught teaching, dạy ~, subject, a, a, ARLWG, school
play plays played played playing, chơi ~, sport, a, a, RrLWG, park school
watch watches watched watched watching, xem ~, film, athdn, an, RLW, home
clean cleans cleaned cleaned cleaning, lau ~, table chair door window, thdo, to, R, home school
""",
)
ADJECTIVES = _entries(
    "en vi more kinds",
    """
red, đỏ, , cloth hat bag pen table chair vehicle flower kite box door apple
blue, xanh, , cloth hat bag pen table chair vehicle bowl cup box door kite
white, trắng, , cloth hat bowl plate cup car flower house horse cat dog bird duck
black, đen, , cloth hat bag phone pen car motorbike cat dog horse pig
yellow, vàng, , cloth hat flower kite lamp cup bag bird
big, to, bigger, furniture animal house window kite box bag fruit food dish boat fan
small, nhỏ, smaller, furniture animal house window kite box bag fruit food dish boat fan
new, mới, newer, book cloth hat dish machine furniture vehicle paper house boat song film
old, cũ, older, book newspaper cloth hat dish machine furniture vehicle paper house boat door
old, già, older, animal
beautiful, đẹp, more beautiful, picture flower cloth hat house bird horse cat boat
expensive, đắt, more expensive, cloth hat machine furniture vehicle paper picture
cheap, rẻ, cheaper, cloth hat machine furniture vehicle paper dish book
heavy, nặng, heavier, furniture box bag pot dictionary
sweet, ngọt, , fruit cake
ripe, chín, , fruit
fresh, tươi, , fruit flower egg
long, dài, longer, story letter poem film song
interesting, hay, more interesting, book story film poem
sad, buồn, , story film song poem
clever, thông minh, more clever, dog cat horse pig
""",
)
GRADED = [(noun, x) for noun in NOUNS for x in ADJECTIVES if x.more and noun.kinds & x.kinds]
PLACES = {row[0]: row[1:] for row in _rows("""
home, at home, ở nhà
garden, in the garden, trong vườn
kitchen, in the kitchen, trong bếp
library, in the library, trong thư viện, the library, đến thư viện
park, in the park, trong công viên, the park, đến công viên
market, at the market, ở chợ, the market, đi chợ
shop, in the shop, trong cửa hàng, the shop, đến cửa hàng
school, at school, ở trường, school, đến trường
""")}  # fmt: skip
SPOTS = _entries(
    "en vi kinds",
    """
on the table, trên bàn, goods cat
on the chair, trên ghế, goods cat
under the bed, dưới gầm giường, goods cat dog
under the tree, dưới gốc cây, animal vehicle
in the cupboard, trong tủ, dish cloth hat book paper
in the box, trong hộp, dish book pen hat
behind the door, sau cánh cửa, bag hat box fan dog cat
behind the house, sau nhà, animal vehicle
in front of the house, trước nhà, animal vehicle
""",
)
WORDS = {slot: [tuple(entry.split("=")) for entry in row] for slot, *row in _rows("""
often, every day=mỗi ngày, every morning=mỗi sáng, every week=mỗi tuần
noon, in the morning=buổi sáng, at noon=buổi trưa, in the evening=buổi tối
ago, yesterday=hôm qua, last week=tuần trước, last night=tối qua, this morning=sáng nay
soon, tomorrow=ngày mai, next week=tuần sau, tonight=tối nay, next month=tháng sau
number, two=hai, three=ba, four=bốn, five=năm, six=sáu, ten=mười, many=nhiều
city, Hanoi=Hà Nội, Hue=Huế, Vinh=Vinh, Saigon=Sài Gòn, Nha Trang=Nha Trang
ride, bus=xe buýt, train=tàu hỏa, car=ô tô, plane=máy bay, motorbike=xe máy
job, a doctor=bác sĩ, a nurse=y tá, an engineer=kỹ sư, a singer=ca sĩ, a lawyer=luật sư
mood, happy=vui, tired=mệt, hungry=đói, thirsty=khát, busy=bận, worried=lo lắng
ill, tired=mệt, busy=bận, ill=bị ốm
hot, hot=nóng, cold=lạnh, cool=mát, warm=ấm, humid=ẩm, windy=nhiều gió
can, can=có thể, must=phải, should=nên
meet, visit=thăm, meet=gặp, help=giúp, call=gọi điện cho
met, visited=thăm, met=gặp, helped=giúp, called=gọi điện cho
this, this=này, that=đó, my=của tôi, your=của bạn
""")}  # fmt: skip

# Forms of the object, flags of the verb | English | Vietnamese | combinations, if not {do} {N}.
# {S}: subject; {O}: object; {V}: in Vietnamese, verb and object.
ACTIONS = _rows(
    """
habit | {S} {does} {O} {often} | {often} {S} {V}
habit | {S} always {does} {O} {noon} | {noon} {S} luôn {V}
habit | {S} {does} {O} {place} {often} | {often} {S} {V} {place}
athdo L | {S} {aux} not {do} {Os} {often} | {S} không {Os} {often}
n | {S} {did} {O} {ago} | {ago} {S} đã {V}
athdon | {S} {did} {O} {ago} | {ago} {S} đã {V}
athdon | {S} will {do} {O} {soon} | {soon} {S} sẽ {V}
athdon | {S} {did} {O} {place} {ago} | {ago} {S} đã {V} {place}
athdo | {S} {is} {doing} {O} {place} | {S} đang {V} {place}
athd | who is {doing} {O} {place}? | ai đang {V} {place}?
athdo | {S} will {do} {O} {in} if it rains tomorrow | nếu ngày mai trời mưa thì {S} sẽ {V} {in}
athdo | {S} {can} {do} {O} | {S} {can} {V}
thd | {S} {aux} not want to {do} {O} | {S} không muốn {V}
athdo | {aux} {S} want to {do} {O}? | {S} có muốn {V} không?
thdm | please {do} {O} | xin hãy {V}
thd | do not {do} {O} | đừng {V}
thd | {S} {has} not {done} {O} yet | {S} chưa {V}
thd | {has} {S} {done} {O} yet? | {S} đã {V} chưa?
thd | {S} {has} already {done} {O} | {S} đã {V} rồi
athdo | where did {S} {do} {O}? | {S} đã {V} ở đâu?
athdo | when will {S} {do} {O}? | khi nào {S} sẽ {V}?
thdo R | {S} did not {do} {O} {ago} because {he} {was} {ill} | {ago} {S} không {V} vì {he} {ill}
thdo r | {S} did not {do} {O} {ago} because it was raining | {ago} {S} không {V} vì trời mưa
ahn G | {S} went to {goal} to {do} {O} {ago} | {ago} {S} đã {goal} để {V}
athdo L | {S} {like} to {do} {Os} | {S} thích {Os}
athdom W | what {aux} {S} want to {do}? | {S} muốn {what}? | {S} what {do}
athdom W | what {is} {S} {doing}? | {S} đang {what}? | {S} what {do}
athdom W | what did {S} {do} {ago}? | {ago} {S} đã {what}? | {S} what {do}
""",
    "|",
)
# Forms of {O} (p: a pronoun's), kinds of its noun {N} | English | Vietnamese | combinations.
# {A} describes {N} and the like {M}.
OTHERS = _rows("""
a SPOT | there is {O} {spot} | {spot} có {O} | {N} {spot}
n SPOT | there are {O} {spot} | {spot} có {O} | {N} {spot}
thdm SPOT | {O} is {spot} | {O} ở {spot} | {N} {spot}
a goods asset animal | {S} {has} {O} | {S} có {O} | have {N}
n goods asset animal fruit food | {S} {has} {O} | {S} có {O} | have {N}
n goods asset animal fruit food | how many {Ns} {aux} {S} have? | {S} có bao nhiêu {N}? | have {N}
p goods asset animal | where is {O}? | {O} ở đâu? | where {N}
- goods | the {N} that {S} bought {ago} is very {A} | {N} mà {S} mua {ago} rất {A} | buy {N};{A} {N}
- | {this} {N} is very {A} | {N} {this} rất {A} | {A} {N}
- | {this} {N} is not {A} | {N} {this} không {A} | {A} {N}
- | is {this} {N} {A}? | {N} {this} có {A} không? | {A} {N}
- | {this} {N} is {er} than {that} {M} | {N} {this} {A} hơn {M} {that} | {A} {N};{A} {M}
- | is {this} {N} {er} than {that} {M}? | {N} {this} có {A} hơn {M} {that} không? | {A} {N};{A} {M}
- goods asset animal text | whose {N} is this? | {N} này là của ai? | whose {N}
- goods asset animal text | whose {Ns} are these? | những {N} này là của ai? | whose {N}
- | {S} went to {city} by {ride} {ago} | {ago} {S} đã đi {city} bằng {ride} | {S} {city}
- | {S} will go to {city} by {ride} {soon} | {soon} {S} sẽ đi {city} bằng {ride} | {city} {ride}
- | {S} {met} {whom} {ago} | {ago} {S} đã {met} {whom} | {met} {whom}
- | {S} will {meet} {whom} {soon} | {soon} {S} sẽ {meet} {whom} | {meet} {whom}
- | {whom} is {job} and works in {city} | {whom} là {job} và làm việc ở {city} | {whom} {job}
- | {S} {is} very {mood} | {S} rất {mood} | {S} {mood}
- | {S} {is} not {mood} | {S} không {mood} | {S} {mood}
- | {is} {S} {mood}? | {S} có {mood} không? | {S} {mood}
- | it is very {hot} in {city} today | hôm nay ở {city} trời rất {hot} | {hot} {city}
- | it was {hot} in {city} {ago} | {ago} ở {city} trời {hot} | {hot} {city}
- | it will be {hot} in {city} {soon} | {soon} ở {city} trời sẽ {hot} | {hot} {city}
- | {S} {like} {x} but {aux} not like {y} | {S} thích {x} nhưng không thích {y} | like {x};not {y}
""", "|")  # fmt: skip
DOING = next(row for row in ACTIONS if "{is} {doing}" in row[1])
ROOMS = {
    "place": list(PLACES),
    "in": ["home", "kitchen", "library"],
    "goal": [name for name, texts in PLACES.items() if len(texts) > 2],
}
LIKED = ("fruit", "meal", "drink", "animal", "subject", "sport")


class Grammar:
    """Draws sentences, of all templates alike often."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.pick = self.rng.choice

    def sentences(self) -> Iterator[Sentence]:
        """Yield sentences without end."""
        while True:
            drawn = [self.fill(self.act, *row) for row in ACTIONS]
            drawn += [self.fill(self.name, *row) for row in OTHERS]
            one, two = (self.fill(self.act, *DOING) for _ in range(2))
            drawn.append((f"{one[0]} and {two[0]}", f"{one[1]} và {two[1]}", one[2] + two[2]))
            for en, vi, keys in drawn:
                if len(en.split()) <= LONGEST:
                    en, vi = (s[0].upper() + s[1:] + "."[: s[-1] != "?"] for s in (en, vi))
                    yield en, unicodedata.normalize("NFC", vi), keys

    def fill(self, draw: Callable, need: str, en: str, vi: str, keys: str = "{do} {N}") -> Sentence:
        """Fill the slots of a template; *draw* fills those of its verb or noun."""
        who = self.pick(SUBJECTS[2 if "?" in en else 0 :])  # one does not ask about oneself
        others = [x for x in SUBJECTS[6:] if x != who and x.pronoun != "they"]
        whom = self.pick([x for x in others if "{job}" not in en or not (x.age or "the " in x.en)])
        person = {"I": 0, "he": 1, "she": 1}.get(who.pronoun, 2)
        slots: Slots = {
            "S": (who.en, who.vi),
            "he": (who.pronoun, who.echo),
            "whom": (whom.en, whom.vi),
        }
        slots |= {slot: self.pick(pairs) for slot, pairs in WORDS.items()}
        slots |= {slot: (forms.split()[person], "") for slot, forms in AGREE.items()}
        slots["this"], slots["that"] = self.rng.sample(WORDS["this"], 2)
        more_keys = draw(slots, need, en, who)
        english, vietnamese = ({slot: pair[i] for slot, pair in slots.items()} for i in (0, 1))
        combinations = keys.format_map(english).split(";") + (more_keys if "{O}" in en else [])
        return en.format_map(english), vi.format_map(vietnamese), combinations

    def act(self, slots: Slots, need: str, en: str, who: Entry) -> list[str]:
        """Fill the slots of a verb and its object; return the combinations in the object."""
        forms, flags = f"{need} ".split(" ", 1)
        slot = next((slot for slot in ROOMS if f"{{{slot}}}" in en), "")
        choices = []
        for verb in VERBS:
            fit = verb.habit if forms == "habit" else [x for x in verb.forms if x in forms]
            rooms = [room for room in verb.places.split() if not slot or room in ROOMS[slot]]
            able = set(flags.strip()) <= set(verb.flags) and not (who.age and "A" in verb.flags)
            if fit and able and (rooms or not slot):
                choices.append((verb, fit, rooms))
        verb, fit, rooms = self.pick(choices)
        noun = self.pick([noun for noun in NOUNS if noun.kinds & verb.kinds])
        thing, thing_vi, keys = self.phrase(noun, fit, who)
        do, does, *others = (word.replace("_", " ") for word in verb.words.split())
        for name, word in zip(("did", "done", "doing"), others, strict=True):
            slots[name] = (word, "")
        slots |= {
            "do": (do, ""),
            "does": (does if slots["has"][0] == "has" else do, ""),
            "N": (noun.en, ""),
            "O": (thing + " for a walk" * (do == "take"), ""),
            "Os": (noun.many, verb.vi.replace("~", noun.vi)),
            "V": ("", verb.vi.replace("~", thing_vi)),
            "what": ("", verb.vi.replace("~", "gì")),
        }
        if slot:
            here, here_vi, *goal = PLACES[self.pick(rooms)]
            slots[slot] = tuple(goal) if slot == "goal" else (here, here_vi)
        return keys

    def name(self, slots: Slots, need: str, _: str, who: Entry) -> list[str]:
        """Fill the slots of a noun, its like and its adjective; return the noun's combinations."""
        forms, *kinds = need.split()
        spot = self.pick(SPOTS)
        wanted = spot.kinds if kinds == ["SPOT"] else set(kinds)
        pairs = [pair for pair in GRADED if not wanted or pair[0].kinds & wanted]
        x = self.pick([x for x in ADJECTIVES if any(x is y for _, y in pairs)])
        noun = self.pick([noun for noun, y in pairs if x is y])
        like = self.pick([other for other, y in GRADED if y is x and other.row == noun.row])
        thing, thing_vi, keys = self.phrase(noun, forms, who)
        group = self.pick(LIKED)
        one, two = self.rng.sample([noun for noun in NOUNS if group in noun.kinds], 2)
        slots |= {
            "N": (noun.en, noun.full),
            "Ns": (noun.many, noun.full),
            "O": (thing, thing_vi),
            "A": (x.en, x.vi),
            "M": (like.en, like.full),
            "er": (x.more, ""),
            "spot": (spot.en, spot.vi),
            "x": (one.many, one.vi),
            "y": (two.many, two.vi),
        }
        return keys

    def phrase(self, noun: Entry, forms: Sequence[str], who: Entry) -> Sentence:
        """Return *noun* in one of *forms*, perhaps with an adjective; *who* owns it in form "o"."""
        if not noun.classed:
            return noun.en, noun.vi, []
        en, many, vi, keys = noun.en, noun.many, noun.full, []
        fit = [x for x in ADJECTIVES if noun.kinds & x.kinds]
        if fit and self.rng.random() < 0.4:
            x = self.pick(fit)
            en, many, vi = f"{x.en} {en}", f"{x.en} {many}", f"{vi} {x.vi}"
            keys = [f"{x.en} {noun.en}"]
        number, number_vi = self.pick(WORDS["number"])
        owner, owner_vi = OWN[who.pronoun], next(x.vi for x in SUBJECTS if x.en == who.pronoun)
        return *{
            "a": (f"{'an' if en[0] in 'aeiou' else 'a'} {en}", f"một {vi}"),
            "t": (f"the {en}", vi),
            "h": (f"this {en}", f"{vi} này"),
            "d": (f"that {en}", f"{vi} đó"),
            "m": (f"my {en}", f"{vi} của tôi"),
            "o": (f"{owner} {en}", f"{vi} {OWN_VI.get(who.pronoun, 'của mình')}"),
            "p": (f"{owner} {en}", f"{vi} của {owner_vi}"),
            "n": (f"{number} {many}", f"{number_vi} {vi}"),
            "-": ("", ""),
        }[self.pick(forms)], keys


def held_out(combination: str) -> bool:
    """Return whether *combination* is kept from the training set.

    The salt leaves every word in training and puts every template in the test.
    """
    return zlib.crc32(f"67 {combination}".encode()) % 8 == 0


def words(pair: tuple[str, str]) -> list[tuple[int, str]]:
    """Return the words of both sentences of *pair*, each with the number of its language."""
    return [(i, word.strip(".,?").lower()) for i in (0, 1) for word in pair[i].split()]


def split(seed: int = 1) -> dict[str, list[tuple[str, str]]]:
    """Return set -> pairs, no source sentence twice."""
    train: dict[str, str] = {}
    rest: dict[str, str] = {}
    drawn = Grammar(seed).sentences()
    while len(train) < SIZES["train"]:
        english, vietnamese, combinations = next(drawn)
        (rest if any(map(held_out, combinations)) else train)[english] = vietnamese
    count = Counter(word for pair in train.items() for word in words(pair))
    known = [pair for pair in rest.items() if all(count[word] >= 5 for word in words(pair))]
    odd = [pair for pair in known if zlib.crc32(pair[0].encode()) % 2]
    even = [pair for pair in known if pair not in odd]
    sets = {"train": list(train.items()), "valid": odd, "test": even}
    return {name: pairs[: SIZES[name]] for name, pairs in sets.items()}


def write(directory: Path) -> None:
    """Write {train,valid,test}.{en,vi} to *directory*."""
    for name, pairs in split().items():
        for language, lines in zip(("en", "vi"), zip(*pairs, strict=True), strict=True):
            text = "".join(line + "\n" for line in lines)
            (directory / f"{name}.{language}").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
