"""The length of a fit, in the words of its method."""


def effort(method: str, n: int) -> dict[str, int]:
    """n steps, or n draws of a sampler."""
    return {"num_samples": n} if method == "nuts" else {"max_steps": n}
