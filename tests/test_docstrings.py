"""What users meet in an editor: the names that completion offers."""

import samplehold as sh
import torch


def test_networks_offer_their_own_methods_and_few_of_torch():
    """IPython completes by `dir` of the object."""
    for network, own in (
        (sh.GRU(2, 3), {"step", "weight_hh_l0", "hidden_size"}),
        (sh.MinGRU(2, 3), {"step", "initial_state", "weight_l0"}),
        (sh.stacks.SuperpositionStackRNN(2, 3, 4), {"step", "mixture", "run"}),
        (sh.automata.Acceptor(sh.GRU(2, 4), torch.nn.Linear(4, 1), "01"), {"accepts", "states", "layer"}),
    ):
        offered = {name for name in dir(network) if not name.startswith("_")}
        assert own | {"forward", "parameters", "state_dict", "to"} <= offered
        assert not {"register_full_backward_pre_hook", "T_destination", "xpu", "permute_hidden"} & offered
        assert len(offered) < 60
        assert all(hasattr(network, name) for name in offered)


def test_models_offer_the_parameters_that_have_values():
    model = sh.SwitchingSSM(sh.Copy(2), sh.Poisson())
    assert "rate" not in dir(model)
    model = model.with_values(redraw_prob=0.1, state_probs=[0.5, 0.5], rate=[[1.0], [2.0]])
    assert {"rate", "state_probs", "fit", "smooth"} <= set(dir(model))
