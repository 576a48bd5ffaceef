"""What a correction does to the gradient of each token, in numbers and in TRL's own loss."""

from pathlib import Path
from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from gymtrain_api.spec import CorrectionMode  # noqa: E402
from gymtrain_trainer.trl.correction import Correction, gradient_scale, with_gradient  # noqa: E402
from tests.unit.trainer.test_trainer_packing import our_batch, random_samples  # noqa: E402

pytestmark = pytest.mark.torch

# Ratios 1, 4, 0.25 of a first sequence; 1.5, 1.5 of a second one.
OLD = [0.0] * 5
NOW = [0.0, 1.3862944, -1.3862944, 0.4054651, 0.4054651]
SEQUENCE = [0, 0, 0, 1, 1]


def scaled(mode: CorrectionMode, **bounds: float) -> list[float]:
    columns = torch.tensor(NOW), torch.tensor(OLD), torch.tensor(SEQUENCE)
    found: list[float] = gradient_scale(*columns, Correction(mode, **bounds)).tolist()
    return found


def test_without_a_correction_every_token_counts_as_trl_has_it() -> None:
    assert scaled("None") == [1.0] * 5


def test_a_mask_by_token_leaves_out_those_outside() -> None:
    assert scaled("TokenMask", lowest=0.5, highest=2.0) == [1.0, 0.0, 0.0, 1.0, 1.0]


def test_a_mask_by_sequence_goes_by_its_mean_ratio() -> None:
    assert scaled("SequenceMask", lowest=0.5, highest=1.4) == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_limit_by_token_makes_of_the_ratio_in_the_gradient_the_limit() -> None:
    assert scaled("TokenTruncate", highest=2.0) == pytest.approx([1.0, 0.5, 1.0, 1.0, 1.0])


def test_a_limit_by_sequence_gives_each_of_its_tokens_the_sequences_product() -> None:
    products = [1.0, 1.0, 1.0, 2.0, 2.0]  # 1 x 4 x 0.25; 1.5 x 1.5, limited
    ratios = [1.0, 4.0, 0.25, 1.5, 1.5]
    assert scaled("SequenceTruncate", highest=2.0) == pytest.approx(
        [p / r for p, r in zip(products, ratios, strict=True)]
    )


def test_tokens_that_moved_far_overflow_nothing() -> None:
    columns = torch.tensor([200.0, -200.0]), torch.zeros(2), torch.tensor([0, 1])
    for mode in get_args(CorrectionMode.__value__):
        assert torch.isfinite(gradient_scale(*columns, Correction(mode))).all()


def test_a_scaled_gradient_leaves_the_value() -> None:
    values = torch.tensor([2.0, 3.0], requires_grad=True)
    made = with_gradient(values, torch.tensor([0.0, 0.5]))
    made.sum().backward()
    assert made.tolist() == [2.0, 3.0]
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 0.5]


def loss_and_gradient(tiny_model: Path, folder: Path, correction: dict[str, Any]) -> tuple[float, Any, dict[str, Any]]:
    from tests.unit.trainer.test_trainer_trl import idle_trainer

    trainer = idle_trainer(tiny_model, folder, rollout={"correction": correction})
    loss = trainer.compute_loss(trainer.model, our_batch(random_samples(7)))
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
    return float(loss.detach()), gradient, {key: values[0] for key, values in trainer._metrics["train"].items()}


def test_a_mask_that_keeps_all_tokens_is_trls_loss(tiny_model: Path, tmp_path: Path) -> None:
    plain = loss_and_gradient(tiny_model, tmp_path / "a", {})
    kept = loss_and_gradient(
        tiny_model, tmp_path / "b", {"mode": "TokenMask", "minRatio": "0", "maxRatio": "1000000000"}
    )
    assert kept[0] == pytest.approx(plain[0], rel=1e-6)
    assert torch.allclose(kept[1], plain[1], atol=1e-7)
    assert kept[2] == pytest.approx(plain[2])


def test_a_mask_that_keeps_none_trains_nothing_and_the_ratio_in_the_log_stays_true(
    tiny_model: Path, tmp_path: Path
) -> None:
    plain = loss_and_gradient(tiny_model, tmp_path / "a", {})
    none = loss_and_gradient(
        tiny_model, tmp_path / "b", {"mode": "TokenMask", "minRatio": "999999", "maxRatio": "1000000"}
    )
    assert float(none[1].abs().max()) == 0.0
    assert none[2]["ratio"] == pytest.approx(plain[2]["ratio"])
    assert none[2]["kl"] == pytest.approx(plain[2]["kl"])


def test_a_limited_ratio_is_the_policy_gradient_with_that_weight(tiny_model: Path, tmp_path: Path) -> None:
    """Without PPO's clip, whatever epsilon is: the loss of the decoupled objective, written out."""
    limited = loss_and_gradient(tiny_model, tmp_path / "a", {"mode": "TokenTruncate", "maxRatio": "2"})
    batch = our_batch(random_samples(7))

    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")
    total = torch.zeros(())
    count = 0
    for sample in random_samples(7):
        ids = torch.tensor([list(sample.token_ids)])
        scores = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        for place in range(1, ids.shape[1]):
            if sample.mask[place]:
                now = scores[place - 1, ids[0, place]]
                weight = (now.detach() - sample.log_probs[place]).clamp(-20, 20).exp().clamp(max=2.0)
                total = total - weight * sample.reward * now  # the advantage that our_batch gives it
                count += 1
    assert count == int(batch["global_n_tokens"][0])
    (total / count).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(limited[1], expected, atol=1e-5, rtol=1e-3)
