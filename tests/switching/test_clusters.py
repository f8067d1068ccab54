"""k-means in torch alone and by the native library, beside scikit-learn's."""

import numpy as np
import pytest
import torch
from samplehold.switching.emissions import clusters as module
from samplehold.switching.emissions.clusters import clusters, clusters_among, kmeans
from sklearn.cluster import KMeans
from torch import Tensor

SCALES = {torch.float64: (1.0, 1e-200, 1e200), torch.float32: (1.0, 1e-20, 1e30)}


FORMS = pytest.mark.parametrize("form", [kmeans.plain, kmeans], ids=["plain", "native"])


def groups(n: int, k: int, gap: float, seed: int, width: int = 2) -> tuple[Tensor, Tensor]:
    """Points around k places that lie far apart, and the place of each."""
    rng = np.random.default_rng(seed)
    places = gap * rng.permutation(k)[:, None] * np.ones(width)
    own = np.resize(np.arange(k), n)
    return torch.from_numpy(places[own] + rng.standard_normal((n, width))), torch.from_numpy(own)


def by_scikit_learn(x: Tensor, learn_from: Tensor, k: int, seed: int) -> Tensor:
    means = KMeans(k, n_init=1, max_iter=module.ITERATIONS, random_state=seed)  # pyright: ignore[reportArgumentType]
    return torch.from_numpy(means.fit(learn_from.numpy()).predict(x.numpy()).astype(np.int64))


def inertia(x: Tensor, labels: Tensor) -> float:
    own = torch.nn.functional.one_hot(labels).to(x)
    means = own.mT @ x / own.sum(0).clamp_min(1).unsqueeze(-1)
    return float((x - own @ means).square().sum())


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two labellings differ in the names of the labels alone."""
    pairs = torch.stack([a, b]).unique(dim=1).shape[1]
    return pairs == len(a.unique()) == len(b.unique())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [2, 5, 12])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_points_far_apart_are_told_apart(kind, k, seed):
    x, own = groups(40 * k, k, 30.0, seed)
    x = x.to(kind)
    for form in (kmeans.plain, kmeans, by_scikit_learn):
        assert same(form(x, x, k, seed), own)


@pytest.mark.parametrize("k", [3, 8])
def test_points_without_groups_are_as_near_to_their_means_as_by_scikit_learn(k):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((600, 3)))
    ours, theirs = (sorted(inertia(x, form(x, x, k, seed)) for seed in range(15)) for form in (kmeans, by_scikit_learn))
    assert ours[7] < 1.02 * theirs[7]
    assert ours[-1] < 1.05 * theirs[-1]


@pytest.mark.parametrize("width", [1, 2, 9])
@pytest.mark.parametrize("k", [2, 3, 8])
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_the_native_library_has_the_labels_of_the_plain_form(kind, k, width):
    x = torch.from_numpy(np.random.default_rng(k).standard_normal((501, width))).to(kind)
    assert torch.equal(kmeans(x, x[:300], k, 0), kmeans.plain(x, x[:300], k, 0))


@pytest.mark.parametrize(("kind", "scale"), [(kind, scale) for kind in SCALES for scale in SCALES[kind]])
@FORMS
def test_no_scale_and_no_offset_changes_the_clusters(kind, scale, form):
    x, own = groups(200, 4, 30.0, 0)
    for offset in (0.0, 1e3):
        assert same(form(scale * (x + offset).to(kind), scale * (x + offset).to(kind), 4, 0), own)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("k", [2, 4, 9])
@FORMS
def test_equal_points_are_in_one_cluster_however_many_there_are(kind, k, form):
    x = torch.tensor([[0.0, 1.0], [0.1, 0.0], [-3.0, 7.0]], dtype=kind).repeat(21, 1)
    found = form(x, x, k, 0).reshape(21, 3)
    assert bool((found == found[0]).all())
    assert len(found[0].unique()) == min(k, 3)
    assert bool(((found >= 0) & (found < k)).all())


@pytest.mark.parametrize("n", [0, 1, 3])
@FORMS
def test_one_point_no_point_or_one_place_are_one_cluster(n, form):
    x = torch.full((n, 2), 0.3, dtype=torch.float64)
    assert clusters(x, x, 3, 0).tolist() == [0] * n
    assert clusters(x, x, 1, 0).tolist() == [0] * n
    if n:
        assert len(form(x, x, 3, 0).unique()) == 1
        assert len(form(0 * x, 0 * x, 1, 0).unique()) == 1


def test_a_cluster_that_loses_its_points_goes_on_elsewhere(monkeypatch):
    monkeypatch.setattr(module, "_far_apart", lambda x, n, generator: x[:1].repeat(n, 1))  # all but one have no point
    x, own = groups(90, 2, 50.0, 1)
    assert same(kmeans.plain(x, x, 2, 0), own)
    assert len(kmeans.plain(x, x, 7, 0).unique()) == 7


@FORMS
def test_in_parts_distances_are_the_same(monkeypatch, form):
    x, _ = groups(100, 3, 5.0, 0)
    whole = form(x, x, 3, 0)
    monkeypatch.setattr(module, "ROOM", 7)
    monkeypatch.setattr(module, "AT_ONCE", 7)
    assert torch.equal(form(x, x, 3, 0), whole)


@FORMS
def test_a_seed_gives_one_labelling_and_another_another(form):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((300, 2)))
    found = [form(x, x, 6, seed) for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("width", [2, 100])
def test_clusters_are_learnt_from_some_and_told_of_all(width):
    x, own = groups(500, 3, 30.0, 0, width)
    x[::10] = 1e4  # not among those that are looked at
    among = torch.arange(500) % 10 != 0
    found = clusters_among(x, among, 3, np.random.default_rng(0), most=60)
    assert same(found[among], own[among])
