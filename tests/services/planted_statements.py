"""Pairs of statements of one user each, of which it is known whether the second ends the first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final, Literal

type Kind = Literal["contradiction", "paraphrase", "homonym", "unrelated"]

CITIES: Final = ("Oslo", "Bergen", "Stavanger", "Rome", "Porto", "Lyon", "Kyoto", "Quito", "Paris", "Jordan")
FIRMS: Final = ("Acme", "Borealis", "Cargill", "Dynamo", "Orange", "Fjordtech", "Globex", "Initech")
NAMES: Final = ("Anna", "Ben", "Clara", "David", "Eva", "Jordan", "Paris", "Hugo", "Ines", "Jonas")
THINGS: Final = ("coffee", "sushi", "jazz", "cheese", "tennis", "opera", "beer", "chess")
PETS: Final = ("dog", "cat", "hamster", "rabbit", "parrot")
CARS: Final = ("Volvo", "Toyota", "Fiat", "Skoda")

# first statement, second statement: {a} and {b} differ, {n} is a name, {x} a thing
_CONTRADICTIONS: Final[Sequence[tuple[str, Sequence[str], Sequence[str]]]] = (
    ("city", ("I live in {a}.", "My flat is in {a}.", "I'm based in {a}."), (
        "I moved to {b}.", "My new flat is in {b}, I have been here since Monday.", "{b} is my home now.",
        "I have relocated to {b}.", "These days I live in {b}.", "We've settled in {b}.",
        "Last month I moved from {a} to {b}.", "My new address is in {b}.", "I don't live in {a} anymore.",
        "I moved away from {a}.",
    )),
    ("firm", ("I work for {a}.", "I am employed at {a}.", "My employer is {a}."), (
        "I started a new job at {b}.", "I work at {b} now.", "I changed jobs and went to {b}.", "I got hired by {b}.",
        "I was laid off by {a}.", "I quit my job.", "My new job is at {b}.", "I no longer work for {a}.",
    )),
    ("name", ("I'm dating {a}.", "My girlfriend is {a}.", "I am married to {a}."), (
        "{a} and I broke up.", "I'm single again.", "I'm engaged to {b}.", "I broke up with {a} last week.",
        "My new partner is {b}.", "We got divorced." , "I got married to {b}.", "{a} left me.",
    )),
    ("thing", ("I like {x}.", "I really love {x}.", "I am a big fan of {x}."), (
        "I no longer like {x}.", "I can't stand {x} anymore.", "I have grown tired of {x}.", "I hate {x}.",
        "I am not a fan of {x} anymore.", "I stopped enjoying {x}.",
    )),
    ("pet", ("I have a {x}.", "I adopted a small {x}."), (
        "My {x} died.", "I gave away my {x}.", "I no longer have a {x}.", "Our {x} passed away yesterday.",
    )),
    ("car", ("I drive a {a}.", "My car is a red {a}."), ("I drive a {b} now.", "My new car is a {b}.")),
    ("name", ("My doctor is Dr. {a}.", "My dentist is {a}."), ("My doctor is Dr. {b}.",
        "My new dentist is called {b}.")),
    ("thing", ("My favourite pastime is {x}.",), ("My favourite pastime is now knitting.",
        "My new favourite pastime is hiking.")),
    ("name", ("My name is {a}.", "Call me {a}."), ("Please call me {b} from now on.", "I changed my name to {b}.")),
    ("city", ("My mother lives in {a}.",), ("My mother moved to {b}.", "My mother has moved back to {b}.")),
)  # fmt: skip
_BEYOND_RULES: Final[Sequence[tuple[str, Sequence[str], Sequence[str]]]] = (
    ("city", ("I live in {a}.",), (
        "The keys of the house in {b} are ours, all boxes are unpacked.", "Since Monday our address is one in {b}.",
    )),
    ("firm", ("I work for {a}.",), ("Today was my first day of work at {b}.",
        "My old job is history, {b} pays me now.")),
    ("name", ("I'm dating {a}.",), ("It's over between {a} and me, no more partner.",
        "My girlfriend {a} walked out on me.")),
)  # fmt: skip
_PARAPHRASES: Final[Sequence[tuple[str, Sequence[str], Sequence[str]]]] = (
    ("city", ("I live in {a}.", "I moved to {a}.", "My flat is in {a}."), (
        "I still live in {a}.", "My home is in {a}.", "{a} is my home.", "I'm living in {a} now.", "I reside in {a}.",
    )),
    ("firm", ("I work for {a}.", "I started a new job at {a}."), (
        "I'm working at {a}.", "My employer is {a}.", "I still work for {a}.", "I am employed by {a}.",
    )),
    ("name", ("I'm dating {a}.", "My girlfriend is {a}."), (
        "I'm in a relationship with {a}.", "{a} is my girlfriend.", "{a} and I are together.",
        "My partner is called {a}.",
    )),
    ("thing", ("I like {x}.", "I love {x}."), ("I enjoy {x}.", "I'm fond of {x}.", "I really like {x}.",
        "I am into {x}.")),
    ("pet", ("I have a {x}.",), ("I own a {x}.", "We have a {x}.", "I have adopted a {x}.")),
)  # fmt: skip
_HOMONYMS: Final[Sequence[tuple[str, Sequence[str], Sequence[str]]]] = (
    ("city", ("My colleague {n} lives in {a}.", "My friend {n} moved to {a}."), (
        "My cousin {n} lives in {b}.", "{n} from school lives in {b}.", "My neighbour {n} moved to {b}.",
    )),
    ("city", ("{n} lives in {a}.",), ("{n} lives in {b}.", "The other {n} moved to {b}.")),
    ("city", ("My sister lives in {a}.",), ("My sister lives in {b}.", "My brother moved to {b}.")),
    ("city", ("I live in {a}.",), (
        "My friend {n} lives in {b}.", "My boss moved to {b}.", "My dog is called {b}.",
        "I'm dating {n}, who lives in {b}.",
    )),
    ("firm", ("I work for {a}.",), ("My wife works for {b}.", "I bought a shirt from {b}.", "I like {b}.")),
)  # fmt: skip
_UNRELATED: Final[Sequence[tuple[str, Sequence[str], Sequence[str]]]] = (
    ("city", ("I live in {a}.", "My flat is in {a}."), (
        "I used to live in {b}.", "I visited {b} last week.", "I might move to {b}.", "I want to live in {b}.",
        "My favourite city is {b}.", "I was born in {b}.", "If I lived in {b}, I would swim every day.",
        "I moved to {b} in 2011.", "I am in {b} for two weeks.", "I would love to live in {b}.",
        "He said: \"I live in {b}.\"",
        "I live in {b} until Friday.", "I almost moved to {b}.", "I live in a small house.", "My flat is nice.",
        "I moved to the front row.", "My house is in ruins.", "I live near {b} station.", "I work in {b}.",
        "I love {b}.",
    )),
    ("firm", ("I work for {a}.",), (
        "I applied for a job at {b}.", "I had an interview with {b}.", "I like the products of {b}.",
        "I live near {b}.",
        "I used to work for {b}.", "I work with children.", "I got fired up about {b}.",
        "I may work for {b} one day, perhaps.",
    )),
    ("name", ("My girlfriend is {a}.",), ("My girlfriend is Norwegian.", "My girlfriend is {b}'s sister.",
        "{a} left me a note.",
        "{b} and I are together in the office.", "I'm seeing {b} for lunch.", "My boss is {b}.")),
    ("car", ("I drive a {a}.",), ("I drive a lot.", "I drive a bus for a living.", "My neighbour drives a {b}.")),
    ("thing", ("I like {x}.",), ("I like {y}.", "I don't like {y}.", "I had {x} yesterday.", "My boss hates {x}.")),
    ("pet", ("I have a {x}.",), ("I have a {y}.", "My neighbour's {x} died.", "My {y} died.")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """Two statements of the user ``u{number}``, the second later."""

    number: int
    kind: Kind
    first: str
    second: str
    is_beyond_rules: bool = False

    @property
    def ends(self) -> bool:
        """Whether the second ends the first."""
        return self.kind == "contradiction"


def planted(seed: int = 41) -> list[Pair]:
    """Return 200 contradictions, 30 of them in words that no rule knows, 200 paraphrases, 100 of each other kind."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    planned: Sequence[tuple[Kind, Sequence[tuple[str, Sequence[str], Sequence[str]]], int, bool]] = (
        ("contradiction", _CONTRADICTIONS, 170, False), ("contradiction", _BEYOND_RULES, 30, True),
        ("paraphrase", _PARAPHRASES, 200, False), ("homonym", _HOMONYMS, 100, False),
        ("unrelated", _UNRELATED, 100, False),
    )  # fmt: skip
    for kind, forms, count, beyond in planned:
        wordings = [(of, *each) for of, firsts, seconds in forms for each in product(firsts, seconds)
                    if not (("octor" in each[0]) ^ ("octor" in each[1]))]  # fmt: skip
        rng.shuffle(wordings)
        chosen = islice((each for _ in range(count) for each in wordings), count)
        for of, first, second in chosen:
            values = {"city": CITIES, "firm": FIRMS, "name": NAMES, "thing": THINGS, "pet": PETS, "car": CARS}[of]
            a, b = rng.sample(values, 2)
            named = {"a": a, "b": b, "x": a, "y": b, "n": rng.choice(NAMES)}
            pairs.append(Pair(len(pairs), kind, first.format(**named), second.format(**named), beyond))
    rng.shuffle(pairs)
    return pairs


@dataclass(frozen=True, slots=True)
class Remembered:
    """A statement, a question about it, and a word of the answer."""

    text: str
    question: str
    answer: str


_OF_ONESELF: Final = (
    ("My {0} is called {1}.", "What is my {0} called?", (
        "sister", "brother", "cat", "dog", "boat", "doctor", "dentist", "boss", "street", "school", "band", "horse",
    )),
    ("My favourite {0} is {1}.", "What is my favourite {0}?", (
        "colour", "film", "song", "book", "dish", "drink", "city", "season", "sport", "game", "flower", "museum",
    )),
    ("I bought the {0} from {1}.", "From whom did I buy the {0}?", (
        "bicycle", "lamp", "sofa", "piano", "camera", "tent", "kayak", "oven", "carpet", "desk", "mirror", "violin",
    )),
    ("The code of my {0} is {1}.", "What is the code of my {0}?", (
        "locker", "gate", "garage", "safe", "alarm", "suitcase", "phone", "cellar", "office", "bank card",
        "laptop", "tablet",
    )),
    ("We celebrate {0} at the house of {1}.", "Where do we celebrate {0}?", (
        "Christmas", "Easter", "midsummer", "New Year", "Halloween", "Thanksgiving",
    )),
    ("I am allergic to {0}, it was found by {1}.", "Who found that I am allergic to {0}?", (
        "nuts", "pollen", "cats", "shrimp", "milk", "wasps",
    )),
    ("I pay {1} for the {0} each month.", "How much do I pay for the {0}?", (
        "gym", "internet", "parking", "newspaper", "streaming", "insurance", "piano lessons", "storage", "car", "rent",
    )),
    ("Our meeting about {0} is led by {1}.", "Who leads our meeting about {0}?", (
        "budgets", "hiring", "safety", "design", "sales", "support", "research", "travel", "training", "logistics",
    )),
    ("I lent my {0} to {1}.", "To whom did I lend my {0}?", (
        "drill", "ladder", "jacket", "guitar", "tripod", "backpack", "helmet", "saw", "blender", "projector",
    )),
    ("I learned {0} from {1}.", "From whom did I learn {0}?", (
        "chess", "sailing", "cooking", "knitting", "Spanish", "juggling", "skiing", "painting", "swimming", "baking",
    )),
)  # fmt: skip
_SMALL_TALK: Final = (
    "Could you check the weather for the weekend?", "Thanks, that helps.", "The meeting took longer than planned.",
    "What time is the train to the airport?", "Please shorten the second paragraph.", "It rains again today.",
    "Can you translate this sentence?", "The printer on the third floor is broken.",
)  # fmt: skip


def remembered() -> list[Remembered]:
    """Return 100 statements about different things."""
    made = [(text, question, thing) for text, question, things in _OF_ONESELF for thing in things]
    return [
        Remembered(text.format(thing, f"Zed{number:02}"), question.format(thing), f"Zed{number:02}")
        for number, (text, question, thing) in enumerate(made[:100])
    ]


def among_small_talk(planted: Sequence[Remembered], turns: int = 500) -> list[tuple[str, str]]:
    """Return turns of role and text: each statement has one answer behind it, and small talk follows."""
    made: list[tuple[str, str]] = []
    for number, each in enumerate(planted):
        made += [("user", each.text), ("assistant", _SMALL_TALK[number % len(_SMALL_TALK)])]
    more = (("assistant" if number % 2 else "user", _SMALL_TALK[number % len(_SMALL_TALK)]) for number in range(turns))
    return [*made, *more][:turns]
