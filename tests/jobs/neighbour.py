"""Another program on a GPU: matrix products without end, on the first GPU that it may see."""

import torch


def main() -> None:
    """Multiply until somebody ends it."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while True:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
