"""Train through the death of any rank: protect, a step, and a spare that takes the dead rank's role.

wirewise run swift --kills 1 -- torchrun --nproc-per-node 2 examples/by_feature/survive_failures.py
"""

from torch import manual_seed, nn, optim, randn
from torch.utils.data import DataLoader, TensorDataset

from wirewise.runtime import recovery

manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(randn(2048, 8), randn(2048, 1)), batch_size=16, shuffle=True)
training = recovery.protect(model, optimizer, loader, epochs=2)  # a spare waits here for a role
for x, y in training:
    with training.step():  # reduces, updates, commits; a failure is mended at its end
        loss = nn.functional.mse_loss(training.model(x), y)
        loss.backward()
print(f"last loss {loss.item():.3f}")
