import pytest

from demo.errors import ProviderError
from demo.fault import Fault
from demo.models import ALL_MODELS, FAULTS, Model, Tally, find_model
from tests.unit.demo.asking import CLOCK, actions, play, reply, request, with_results


def test_demo_is_the_first_model_and_no_name_is_used_twice() -> None:
    names = [model.name for model in ALL_MODELS]
    assert names[0] == "demo"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_every_model_is_found_by_its_name_and_says_what_it_does(model: Model) -> None:
    assert find_model(model.name) is model
    assert model.shown()["description"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpt-4o",
        "demo-",
        "demo-fault-",
        "demo-fault-nothing",
        "demo-fault-status-200",
        "demo-fault-cut-thrice",
        "demo-cut",
    ],
)
def test_an_unknown_model_is_refused_as_a_provider_does(name: str) -> None:
    with pytest.raises(ProviderError) as caught:
        find_model(name)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_a_fault_plays_every_time_unless_its_name_says_otherwise() -> None:
    tally = Tally()
    assert all(find_model("demo-fault-cut").fault_for(request("hi"), tally) for _ in range(3))


@pytest.mark.parametrize(
    ("ending", "played"), [("once", [1, 0, 0]), ("twice", [1, 1, 0]), ("times-3", [1, 1, 1, 0]), ("times-0", [0])]
)
def test_a_fault_plays_so_many_times_for_the_same_text(ending: str, played: list[int]) -> None:
    tally = Tally()
    name = f"demo-fault-status-429-{ending}"
    model = find_model(name)
    assert [bool(model.fault_for(request("one", model=name), tally)) for _ in played] == [bool(n) for n in played]
    assert [bool(model.fault_for(request("two", model=name), tally)) for _ in played] == [bool(n) for n in played]


def test_the_user_field_tells_equal_texts_apart() -> None:
    tally, name = Tally(), "demo-fault-cut-once"
    model = find_model(name)
    assert model.fault_for(request("hi", model=name, user="a"), tally)
    assert model.fault_for(request("hi", model=name, user="b"), tally)
    assert model.fault_for(request("hi", model=name, user="a"), tally) is None


def test_after_tools_waits_for_results() -> None:
    tally, name = Tally(), "demo-fault-cut-after-tools-once"
    model = find_model(name)
    assert (model.after_tools, model.times) == (True, 1)
    asked = "[call:current_time]"
    called = reply(asked, tools=[CLOCK])
    later = request(asked, *with_results(called, "noon"), tools=[CLOCK], model=name)
    assert model.fault_for(request(asked, tools=[CLOCK], model=name), tally) is None
    assert model.fault_for(later, tally)
    assert model.fault_for(later, tally) is None


def test_any_error_status_can_be_played() -> None:
    assert play("status-418", "hi").status == 418


def test_a_window_refuses_what_does_not_fit() -> None:
    assert play("window-5", "one two three").status == 200
    assert play("window-5", "one two three four five").status == 400


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_plays_on_a_stream(fault: Fault) -> None:
    assert actions(play(fault.name, "what time is it", tools=[CLOCK]))
