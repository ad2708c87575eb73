"""Loss curves: GPT-2 small of transformers (85 million weights without its vocabulary: tokens are bytes) trained on text
that comes with Python, its standard library's source, from the same weights, batches and seed by eager attention, SDPA and
flashkiln. With dropout each implementation drops other weights, so that curves agree as those of two seeds do. Results:
losses.csv
"""
import pathlib
import sysconfig
import time

LENGTH, BATCH, RATE = 1024, 8, 3e-4


def text(torch):
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()


def model_of(session, name, dropout, length):
    import transformers
    import flashkiln.hf
    transformers.utils.logging.set_verbosity_error()
    flashkiln.hf.register()
    layers, heads, width = (12, 12, 768) if session.cuda else (1, 2, 32)
    config = transformers.GPT2Config(vocab_size=256, n_layer=layers, n_head=heads, n_embd=width, n_positions=length,
                                     attn_pdrop=dropout, resid_pdrop=dropout, embd_pdrop=dropout, use_cache=False,
                                     bos_token_id=0, eos_token_id=0)
    session.torch.manual_seed(0)
    with session.torch.device(session.device):
        return transformers.GPT2LMHeadModel._from_config(config, attn_implementation=name).train()


def train(session, name, dropout, data, steps):
    """(losses of all steps, seconds a step); the host waits for none of them."""
    torch, length, batch = session.torch, *((LENGTH, BATCH) if session.cuda else (24, 2))
    model = model_of(session, name, dropout, length)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=session.cuda)
    random, losses, begin = torch.Generator().manual_seed(0), [], None
    data = data.to(session.device)
    for step in range(steps):
        starts = torch.randint(len(data) - length, (batch, 1), generator=random)
        tokens = data[(starts + torch.arange(length)).to(session.device)]
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 30)
        with torch.autocast(session.device, torch.bfloat16, enabled=session.cuda):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if step == 0:
            session.wait()
            begin = time.perf_counter()
    session.wait()
    return [x.item() for x in losses], (time.perf_counter() - begin) / max(1, steps - 1)


def run(session):
    data, steps = text(session.torch), (session.args.steps or (40 if session.args.quick else 300)) if session.cuda else 3
    for dropout in session.units(session.args.dropout or ((0.0,) if session.args.quick else (0.0, 0.1)), "dropout {:g}".format):
        curves = {}
        for name in ("eager", "sdpa", "flashkiln") if not dropout else ("eager", "flashkiln"):
            losses, seconds = train(session, name, dropout, data, steps)
            curves[name] = losses
            session.write("losses", [{"model": "gpt2-small", "dropout": dropout, "name": name, "step": i, "loss": f"{x:.5f}",
                                      "step_ms": f"{seconds * 1e3:.2f}"} for i, x in enumerate(losses)])
            session.say(f"dropout {dropout:g} {name}: {losses[0]:.4f} to {losses[-1]:.4f}, {seconds * 1e3:.1f} ms a step")
            session.free()
        for name, losses in curves.items():
            apart = [abs(a - b) for a, b in zip(losses, curves["eager"])]
            session.say(f"  {name} to eager: {sum(apart) / len(apart):.2e} in the mean, {max(apart):.2e} at most")
