@ local first = (plan.teams > 1 and plan.teams .. " * " or "") .. "gridDim.x" .. (plan.cluster > 1 and " / " .. plan.cluster or "")
// CTAs claim tiles: the first is a CTA's own number, and those that follow are counted by p.claims[1]. p.claims[0]
// says for which launch it counts; before the first claim both may hold anything, and the first CTA to come writes both. That there is no
// loop leaves producers their registers.
@ if plan.sides then
//
// Each half of the SMs has a side of L2, and what memory of the other side holds comes to it over a link between them. Where few rows read
// a head's keys, that link is full before HBM is. So where p.sided, tiles of even numbers are of heads that one side reads, those of odd
// numbers of heads that the other one does, and each half of p.claims[1] counts the claims of one side. Keys come over the link once at most.
@ end
__device__ __forceinline__ void open_claims(const Params &p) {
    const u64 count = p.claims[1], seen = ld_acquire_u64(p.claims);
    if (seen != p.epoch) cas_u64x2(p.claims, seen, count, p.epoch, 0); // or another CTA was first
}

@ if plan.sides then
// Where a CTA's claims come from: of its own side, and when there is nothing left, of the other one.
struct Claims {
    u32 state; // bit 0: which side; bit 1: it is the last one

    __device__ __forceinline__ explicit Claims(const Params &p) : state(p.sided ? p.sides.of_sm[sm_id() / 32] >> sm_id() % 32 & 1 : 2) {}
    __device__ __forceinline__ u32 side() const { return state & 1; }
    // The number of a tile; p.num_tiles or more: of this side there is none. Each CTA claims in vain once of each side, so that by the last
    // claim of either, which closes, none has still to open: a launch of the same epoch (of a graph) does not trust what others wrote since.
    __device__ __forceinline__ int next(const Params &p) const {
        const u32 last = (p.last_claim - side()) >> p.sided, claimed = atom_inc_u32(reinterpret_cast<u32 *>(p.claims + 1) + side(), last);
        if (claimed == last) st_release_u64(p.claims, 0);
        return $(first) + (claimed << p.sided) + side();
    }
    // The tile of a claim.
    __device__ __forceinline__ int tile(const Params &p, int claimed) {
        if (claimed < p.num_tiles || state & 2) return claimed;
        state ^= 3; // the other side
        return next(p);
    }
};
@ else
struct Claims {
    __device__ __forceinline__ explicit Claims(const Params &) {}
    // The number of a tile; p.num_tiles or more: there is none. Each CTA claims in vain once. The last claim of a launch closes, so that a
    // launch of the same epoch (of a graph) does not trust what others wrote since.
    __device__ __forceinline__ int next(const Params &p) const {
        const u32 claimed = atom_inc_u32(reinterpret_cast<u32 *>(p.claims + 1), p.last_claim);
        if (claimed == p.last_claim) st_release_u64(p.claims, 0);
        return $(first) + claimed;
    }
    __device__ __forceinline__ int tile(const Params &, int claimed) const { return claimed; }
};
@ end
