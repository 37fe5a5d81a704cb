from trl_prorl import Periodic, Reason


def test_periodic_fires_at_multiples_and_names_what_it_saw():
    fired = [reason for step in range(10) if (reason := Periodic(every=3).observe_step(step))]
    assert fired == [Reason("periodic", value=s, threshold=3, step=s) for s in (3, 6, 9)]
    assert fired[0].to_dict() == {"reason": "periodic", "value": 3, "threshold": 3, "step": 3}
