"""Dates in words and in ISO's form; none of them is in two parts of the data."""

from collections import defaultdict
from dataclasses import replace
from datetime import date, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.data import dates
from helpers.engine.settings import Dates
from helpers.engine.weights import to_arrays
from sides import on_both_sides

SMALL = replace(
    Dates(), n_train=128 * 3, batch_size=128, epochs=50, n_validation=31, n_test=37
)
DAYS = st.dates(dates.FIRST, dates.LAST)


def test_every_form_is_written_as_people_write_it():
    day = date(1997, 3, 3)
    assert {form: dates.write(day, form) for form in dates.FORMS | dates.UNSEEN} == {
        "of": "the 3rd of March 1997",
        "ordinal": "March 3rd, 1997",
        "short": "Mar 3, 1997",
        "weekday": "Monday, 3 March 1997",
        "dashes": "3-Mar-1997",
        "dots": "3.3.97",
        "slashes": "3/3/1997",
        "year first": "1997, March 3",
        "year before day": "March 1997, the 3rd",
    }
    assert dates.write(date(2004, 12, 25), "dots") == "25.12.04"
    assert dates.write(date(2004, 12, 25), "slashes") == "12/25/2004"


@given(DAYS, st.sampled_from([*dates.FORMS, *dates.UNSEEN]))
def test_parts_spell_the_numbers_and_names_of_a_date(day, form):
    text, parts = dates.write(day, form), dates.parts(day, form)
    assert len(parts) == len(text)
    spelled = {
        name: "".join(c for c, part in zip(text, parts, strict=True) if part == name)
        for name in dates.PARTS
    }
    year = "".join(spelled[f"year {n}"] for n in (1, 2, 3, 4))
    assert f"{day.year}".endswith(year) and len(year) >= 2
    assert int(spelled["day"]) == day.day
    month = dates.MONTHS[day.month - 1]
    assert spelled["month"] in (month, month[:3], f"{day.month}")
    assert spelled["weekday"] in ("", dates.DAYS[day.weekday()])


def test_ordinals_are_those_of_english():
    found = [dates.write(date(2000, 1, d), "ordinal").split()[1] for d in range(1, 32)]
    special = {1: "1st,", 2: "2nd,", 3: "3rd,", 21: "21st,", 22: "22nd,", 23: "23rd,"}
    special[31] = "31st,"
    assert found == [special.get(d, f"{d}th,") for d in range(1, 32)]


PATTERNS = {  # of the forms that Python can read
    "short": "%b %d, %Y",
    "weekday": "%A, %d %B %Y",
    "dashes": "%d-%b-%Y",
    "slashes": "%m/%d/%Y",
}


@given(DAYS, st.sampled_from([*PATTERNS]))
def test_python_reads_the_same_day(day, form):
    found = datetime.strptime(dates.write(day, form), PATTERNS[form])
    assert found.date() == day


@given(st.lists(DAYS, min_size=1, max_size=9, unique=True), st.data())
def test_every_text_can_be_encoded_and_read_back(days, data):
    """Without its padding; targets have ten characters, a begin and an end."""
    forms = [data.draw(st.sampled_from([*dates.FORMS, *dates.UNSEEN])) for _ in days]
    source, target = dates.pairs(days, forms)
    assert source.dtype == target.dtype == np.int32
    assert (
        max(source.max(), target.max())
        < Dates().n_characters
        == 2 + len(dates.CHARACTERS)
    )
    texts = [dates.write(day, form) for day, form in zip(days, forms, strict=True)]
    assert dates.decode(source) == texts
    assert source.shape[1] == max(map(len, texts)) <= Dates().max_length
    assert target.shape == (len(days), 12)
    assert (target[:, 0] == dates.BEGIN).all()
    assert (target[:, -1] == dates.END).all()
    assert dates.decode(target) == [day.isoformat() for day in days]


def test_no_date_is_in_two_parts():
    """Of the days themselves, and of the data that are made of them."""
    parts = dates.split(SMALL)
    assert {name: len(days) for name, days in parts.items()} == {
        "train": 36_525 - 68, "validation": 31, "test": 37,
    }  # fmt: skip
    assert len(set().union(*parts.values())) == 36_525
    data = dates.load(SMALL)
    seen = {name: set(dates.decode(target)) for name, (_, target) in data.items()}
    for name, days in parts.items():
        assert seen[name] <= {day.isoformat() for day in days}
    assert len(data["train"][0]) == 128 * 3 * 50
    assert [len(data[name][0]) for name in ("validation", "test")] == [31, 37]


def forms_of(source, target):
    """The form of each example, and its date in ISO's."""
    texts, answers = dates.decode(source), dates.decode(target)
    names = [
        next(f for f in dates.FORMS if dates.write(date.fromisoformat(iso), f) == text)
        for text, iso in zip(texts, answers, strict=True)
    ]
    return names, answers


def test_every_form_comes_about_equally_often():
    """In training; and examples are in random order."""
    names, answers = forms_of(*dates.load(SMALL)["train"])
    for part in (names, names[:2_000]):
        share = np.array([part.count(form) for form in dates.FORMS]) / len(part)
        np.testing.assert_allclose(share, 1 / 7, atol=0.03)
    assert len(set(answers)) > 14_000


def test_the_form_of_an_example_does_not_follow_from_its_day():
    """A day that comes twice comes in the same form once in seven times."""
    names, answers = forms_of(*dates.load(SMALL)["train"])
    forms = defaultdict(list)
    for name, day in zip(names, answers, strict=True):
        forms[day].append(name)
    alike = [found[0] == found[1] for found in forms.values() if len(found) > 1]
    assert len(alike) > 2_000
    assert np.mean(alike) == pytest.approx(1 / 7, abs=0.05)


def test_data_follow_from_the_seed():
    first, same = dates.load(SMALL), dates.load(SMALL)
    other = dates.load(replace(SMALL, seed=7))
    for name, pair in first.items():
        for ours, theirs in zip(pair, same[name], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        (forms, days), (other_forms, other_days) = (
            forms_of(*pair),
            forms_of(*other[name]),
        )
        assert forms != other_forms
        assert days != other_days


def test_what_is_no_date_raises_an_error():
    with pytest.raises(ValueError, match=r"unknown character 'ä' in '3\. März'"):
        dates.encode(["3 May", "3. März"])
    with pytest.raises(ValueError, match=r"characters of a text to be .* got 0"):
        dates.encode(["3 May", ""])
    with pytest.raises(ValueError, match=r"unknown form 'long': expected one of 'of'"):
        dates.write(date(1997, 3, 3), "long")


def test_a_text_is_read_up_to_its_first_end():
    tokens = dates.encode(["1997"], target=True)[0].tolist()
    assert dates.decode([[*tokens, 5, dates.END, dates.END]]) == ["1997"]
    assert dates.decode([[dates.END] * 3]) == [""]


@on_both_sides
def test_settings_are_those_of_a_model(side):
    model = side.build(
        "Translator", **replace(SMALL, n_blocks=2, m=8, f=11, n_heads=2).model
    )
    params = to_arrays(model)
    assert params["target.embed.weight"].shape == (Dates().n_characters, 8)
    assert "embed.weight" not in params
    assert "target.decoder.blocks.1.cross.qkv.weight" in params
