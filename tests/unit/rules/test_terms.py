"""The terms of texts and questions."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st

from graphweft_workers.text import terms as text_terms
from graphweft_workers.text.terms import STOP_WORDS, EventTerms, TooManyWords, query_terms, scope_term, terms

THAI = "".join(map(chr, range(0xE01, 0xE2F)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The dogs ran; dog's run", ["the", "dog", "ran", "dog", "run"]),
        ("e-mail foo_bar x1 3.14", ["e", "mail", "foo", "bar", "x1", "3", "14"]),
        ("don't", ["dont"]),
        ("São Paulo, STRASSE Straße", ["são", "sao", "paulo", "paul", "strass", "strass"]),
        ("日本語 text", ["日本", "本語", "日", "本", "語", "text"]),
        ("本", ["本"]),
        ("ﬁnal", ["final"]),
        ("@terms:(a|b) *%$", ["term", "a", "b"]),
        ("  \n ", []),
    ],
)
def test_a_text_has_these_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("stored", "question"),
    [
        ("My sister lives in Zürich.", "zurich"), ("My sister lives in Zurich.", "Zürich"), ("à Orléans", "orleans"),
        ("мёд", "мед"), ("我的狗叫小白", "狗"), ("猫の名前はタマです", "猫"), ("ฉันปวดหัวทุกเช้า", "ปวดหัว"),
        ("أختي تسكن في القَاهِرَة", "القاهرة"), ("गंगा का पानी", "पानी"), ("เสื้อ", "ส"),
    ],
)  # fmt: skip
def test_a_word_is_found_without_accents_and_in_any_script(stored: str, question: str) -> None:
    asked = set(query_terms(question))
    assert asked & set(terms(stored))
    assert not asked & set(terms("पिन का नंबर, 川 มาก"))


@pytest.mark.parametrize(
    ("stored", "question"),
    [
        # endings
        ("Ich habe zwei Häuser", "Wo ist mein Haus?"), ("J'aime les chevaux", "Est-ce que tu aimes le cheval ?"),
        ("Vivo en Madrid con mis perros", "¿Cómo se llama mi perro?"), ("Mieszkam w Warszawie", "Gdzie jest Warszawa?"),
        ("Я живу в Москве", "Где Москва?"), ("मेरी बहन लड़कों को पढ़ाती है", "लड़का"), ("أختي تسكن بالقاهرة", "أين القاهرة؟"),
        ("אחותי גרה בירושלים", "איפה ירושלים?"), ("Kedim benim evde", "ev nerede, ne var?"), ("Η γάτα μου", "οι γάτες"),
        # what is before or behind an apostrophe
        ("J’habite dans l’immeuble bleu", "immeuble"), ("La macchina è nell'acqua", "acqua"),
        ("Annem İstanbul'da yaşıyor", "istanbul"), ("immeuble", "l'immeuble"),
        # letters that people leave out, or write otherwise
        ("Mieszkam w Łodzi", "Lodz"), ("Jeg bor i Tromsø", "Tromso"), ("Tôi sống ở Đà Nẵng", "Da Nang"),
        ("Ich wohne in München", "Muenchen"), ("Muenchen", "München"), ("ışık", "isik"), ("IŞIK", "ışık"),
        ("القـــهوة", "القهوه"), ("هواي على", "هوای علی"),
        # digits, joiners, signs
        ("عمري ۲۵ سال", "25"), ("کتاب\u200cهای من", "کتاب"), ("Kran\u00adken\u00adhaus", "Krankenhaus"),
        ("人々の町", "々"), ("I love \U0001f355", "\U0001f355"), ("well done \U0001f44d\U0001f3fd", "\U0001f44d"),
        ("from \U0001f1eb\U0001f1f7", "\U0001f1eb\U0001f1f7"), ("ކިޔަވަން", "ކިޔަވަން"),
    ],
)  # fmt: skip
def test_a_word_is_found_as_people_of_its_language_write_it(stored: str, question: str) -> None:
    assert set(query_terms(question)) & set(terms(stored))


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Wo wohnt die Oma?", ["wohnt", "oma"]), ("Où est mon chat ?", ["chat"]),
        ("¿Dónde está mi gato?", ["gato", "gat"]),
        ("Где моя собака?", ["собака", "собак"]), ("איפה הכלב שלי?", ["הכלב", "כלב"]),
        ("मेरा पानी कहाँ है?", ["पानी", "पान"]),
        ("Hvor bor jeg?", ["bor"]), ("Anh ở đâu?", ["anh", "ở", "o", "đâu", "đau", "dau"]),
    ],
)  # fmt: skip
def test_a_question_goes_without_the_stop_words_of_its_language(question: str, expected: list[str]) -> None:
    assert query_terms(question) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [("Red hat?", {"hat"}), ("Civil war?", {"war"}), ("Son's birthday?", {"son"}), ("Die Hard?", {"die"}),
     ("old men", {"men"}), ("Where did my son pour tea?", {"son", "pour"})],
)  # fmt: skip
def test_an_english_word_that_another_language_stops_is_asked_for(question: str, expected: set[str]) -> None:
    assert expected <= set(query_terms(question))


@pytest.mark.parametrize(
    "text", ["My sister lives in Oslo with her dogs.", "Hey! Great to see you again, what's up?", "I am in Berlin now"]
)
def test_english_texts_keep_their_terms(text: str) -> None:
    stemmed = [Stemmer.Stemmer("english").stemWord(word) for word in re.findall(r"\w+", text.lower().replace("'s", ""))]
    assert terms(text) == stemmed


def test_words_of_scripts_with_vowel_signs_stay_whole() -> None:
    assert terms("मुझे ठंडा पानी") == ["मुझे", "ठंडा", "ठंड", "पानी", "पान"]
    assert query_terms("我的狗") == ["我的", "的狗"]


def test_a_question_goes_without_stop_words_unless_it_has_nothing_else() -> None:
    assert query_terms("What did the user say about dogs and DOGS?") == ["user", "say", "dog"]
    assert query_terms("to be or not to be") == ["or", "not", "to", "be"]
    assert query_terms("the dog", filter_stop_words=False) == ["the", "dog"]
    assert query_terms("don't I'm") == ["dont", "im"]
    assert query_terms("") == []


@pytest.mark.parametrize(
    "word",
    [
        "What's", "Who's", "Where's", "How's", "When's", "Why's", "That's", "There's", "Here's", "It's", "I'm", "I've",
        "I'll", "I'd", "We're", "We'll", "They've", "She'd", "You're", "Who're", "don't", "doesn't", "didn't", "isn't",
        "aren't", "wasn't", "weren't", "can't", "won't", "shan't", "couldn't", "wouldn't've", "haven't", "What\u2019s",
        "Don\u2019t", "whats", "dont", "im", "youre",
    ],
)  # fmt: skip
def test_a_contraction_of_a_stop_word_is_a_stop_word(word: str) -> None:
    assert query_terms(f"{word} dog") == ["dog"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tom's dog", ["tom", "dog"]), ("Is she ill?", ["ill"]), ("the well", ["well"]), ("a shell", ["shell"]),
        ("a garden shed", ["garden", "shed"]), ("They wed", ["wed"]), ("O'Neill", ["oneil"]),
    ],
)  # fmt: skip
def test_other_words_with_an_apostrophe_or_like_contractions_stay(text: str, expected: list[str]) -> None:
    assert query_terms(text) == expected


@pytest.mark.parametrize("apostrophe", ["\u2019", "\u02bc", "\uff07", "`", "\u00b4"])
@pytest.mark.parametrize("word", ["Tom", "Zürich"])
def test_a_word_is_found_whatever_its_apostrophe(word: str, apostrophe: str) -> None:
    stored = terms(f"{word}{apostrophe}s bowl")
    assert {word.lower(), "bowl"} <= set(stored)
    assert set(query_terms(f"{word}'s bowl")) <= {*stored, *query_terms(f"{word}s")}
    assert query_terms(f"What{apostrophe}s bowl") == ["bowl"]


def test_terms_with_a_typographic_apostrophe_that_are_stored_already_are_asked_for() -> None:
    assert terms("Tom\u2019s") == ["toms", "tom"]
    assert terms("don\u2019t") == ["dont"]
    assert terms("l\u2019homme") == ["lhomme", "lhomm", "homm"]
    assert terms("п\u02bcять п\u2019ять") == ["п\u02bcять", "пять", "пять"]


def test_a_long_question_is_asked_by_its_last_terms() -> None:
    words = [f"w{number}" for number in range(1_000)]
    assert query_terms(" ".join([*words, "w1"])) == [*words[-63:], "w1"]


@given(st.text())
def test_a_term_means_nothing_to_a_query_language(text: str) -> None:
    found = terms(text)
    assert all(len(term) <= 64 and term == term.casefold() for term in found)
    assert {unicodedata.category(character)[0] for term in found for character in term} <= set("LNM")
    asked = set(query_terms(text, filter_stop_words=False))
    assert asked <= set(found)
    assert (not found) == (not asked)


def test_stop_words_are_told_before_they_are_stemmed() -> None:
    assert all(query_terms(f"{word} dog") == ["dog"] for word in STOP_WORDS)


def test_a_scope_is_one_word_whatever_it_is_called() -> None:
    values = ["u1", "U1", "u1 ", "a-b", "*", "日本", "", "\ud800", "u1} OR"]
    found = {scope_term(name, value) for value in values for name in ("user_id", "thread_id")}
    assert len(found) == 2 * len(values)
    assert all(term.isascii() and term.isalnum() for term in found)


def test_no_text_takes_long() -> None:
    """Composing a run of combining characters takes quadratic time: a million at once would never end."""
    combined = "a" + "\u0301\u0323" * 500_000
    assert len(terms(combined)) <= 20_000
    assert len(query_terms(combined)) <= 64
    many = " ".join(f"unlikely{number}" for number in range(100_000))
    assert len(terms(many)) == 20_000
    assert query_terms(many)[-1] == "unlikely99999"


@pytest.mark.parametrize("word", ["\u05d5\u05db\u05e9\u05de\u05d4\u05d1\u05d9\u05ea", "\u05d4\u05d1\u05dc\u05de" * 60])
def test_a_hebrew_word_has_a_few_terms(word: str) -> None:
    assert len(terms(word)) <= 6
    assert "tea" in query_terms(f"Where is my tea {word}")


def unspaced(kind: str) -> str:
    """Return a text without blanks of several pieces."""
    chosen = Random(5)
    if kind == "thai":
        return "".join(chosen.choice(THAI) + chosen.choice(["", "\u0e34", "\u0e31\u0e49"]) for _ in range(1_000))
    if kind == "kana":
        return "".join(chosen.choice("かきくけこさしすせそ") + chosen.choice(["", "\u3099"]) for _ in range(1_000))
    if kind == "narrow":
        return "".join(
            chosen.choice("\uff76\uff77\uff78\uff79\uff7a") + chosen.choice(["", "\uff9e"]) for _ in range(1_000)
        )
    if kind == "wide":  # of four to six characters
        return "".join(chr(chosen.randrange(0x3300, 0x3358)) for _ in range(500))
    if kind == "hangul":
        return unicodedata.normalize("NFD", "".join(chr(chosen.randrange(0xAC00, 0xD7A4)) for _ in range(500)))
    return "".join(chr(chosen.randrange(0x4E00, 0x9000)) for _ in range(1_500))


@pytest.mark.parametrize("kind", ["han", "thai", "kana", "narrow", "wide", "hangul"])
@pytest.mark.parametrize("before", ["", "mixed", "x" * 255])
def test_each_pair_of_a_text_without_blanks_is_found(kind: str, before: str) -> None:
    text = before + unspaced(kind)
    stored = set(terms(text))
    plain = unicodedata.normalize("NFKC", text).casefold()[len(before) :]
    assert {plain[at : at + 2] for at in range(len(plain) - 1)} <= stored
    assert set(query_terms(text)) <= stored


@pytest.mark.parametrize(
    "letters",
    [
        "\u05d4\u05d1\u05dc\u05de" * 64, "".join(map(chr, range(0x4E00, 0x4F00))), "กิน" * 80, "가나다" * 80,
        "".join(chr(number) + "\u200d" for number in range(0x410, 0x490)), "l\u2019" * 128, "éàç" * 80, "ab c " * 50,
        " ".join(map(chr, range(0x4E00, 0x4E80))),
    ],
)  # fmt: skip
def test_the_caches_of_terms_are_bounded_whatever_the_texts_are(letters: str) -> None:
    """Texts of strangers fill them, so their entries are few and small."""

    def size(text: str, parts: Sequence[str]) -> int:
        return sys.getsizeof(text) + sys.getsizeof(parts) + sum(map(sys.getsizeof, parts))

    def most(cache: Any) -> int:
        return int(cache.cache_info().maxsize or 0)

    for length in range(1, len(letters) + 1):
        text = letters[:length]
        of_word = text_terms._terms_of(text, True)
        if of_word is text_terms._terms_of(text, True):
            assert size(text, of_word) * most(text_terms._terms_of_short) <= 110_000_000, length
        whole = EventTerms().whole(text)
        if whole is EventTerms().whole(text):
            assert (size(text, whole) + size("", text.split())) * most(text_terms._known) <= 110_000_000, length


def test_the_terms_of_an_event_end_at_its_limits() -> None:
    by_words = EventTerms(most_words=3)
    assert by_words.first("two dogs, two dogs") == (["two", "dog", "two", "dog"], 0)
    assert by_words.first("dogs and cats run") == (["dog", "and"], len("cats run"))
    assert by_words.first("two dogs") == (["two", "dog"], 0)  # no new word
    by_terms = EventTerms(most_terms=3)
    assert by_terms.first("a b ") == (["a", "b"], 0)
    assert by_terms.first("a b  ") == (["a"], len("b  "))
    assert by_terms.first("a") == ([], 1)


def test_names_are_not_cut() -> None:
    names = EventTerms(most_words=3)
    assert names.whole("two dogs") == ["two", "dog"]
    with pytest.raises(TooManyWords):
        names.whole("red cats")
    with pytest.raises(TooManyWords):
        EventTerms(most_terms=1).whole("a a")


def test_only_the_end_of_a_very_long_question_is_read() -> None:
    assert query_terms("dog " + "the " * 50_000) == ["the"]
    assert query_terms("dog " + "the " * 4_000) == ["dog"]


def test_a_word_of_more_than_64_characters_is_cut_and_not_stemmed() -> None:
    assert terms("x" * 62 + "ing") == ["x" * 62 + "in"]


def test_stems_are_those_that_are_stored_already() -> None:
    """Another version of Snowball may stem other words: then stored texts would not be found by them."""
    text = "generously ponies nationalization skis dying inning earring proceeded happily yes sensational relational"
    assert " ".join(terms(text)) == ("generous poni nation ski die inning earring proceed happili yes sensat relat")
