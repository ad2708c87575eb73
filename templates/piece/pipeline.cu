// Buffers in shared memory that producers fill and the warpgroups of consumers empty, in turn. Each has an mbarrier for `full`
// (one arrival, and the bytes of the copies) and one for `empty` (an arrival of each warp that reads it).
constexpr int consumers = $(plan.consumers), q_stages = $(plan.q_stages), k_stages = $(plan.k_stages), v_stages = $(plan.stages);
constexpr u32 q_full = smem_bars, q_empty = q_full + 8 * q_stages, k_full = q_empty + 8 * q_stages, k_empty = k_full + 8 * k_stages;
@ local latent = plan.values_are_keys -- one warp loads Q and K, which has the values
@ if latent then
constexpr u32 v_full = k_full, v_empty = k_empty, tail_full = k_empty + 8 * k_stages; // a tile is given back when it has been read as values
@ else
constexpr u32 v_full = k_empty + 8 * k_stages, v_empty = v_full + 8 * v_stages, tail_full = v_empty + 8 * v_stages;
@ end
// Of the tile at hand and the one before: which it is (or what is_redo knows, piece/claimed.cu: it is to be computed once more),
// and for each consuming warp whether it must be computed once more.
constexpr u32 claim_full = tail_full + 8; // the first claim, below, is there
@ local pair = plan.cluster > 1
@ local shares = pair and not plan.halved -- two CTAs with neighbouring queries share tiles of keys, of which each loads every other panel for both
@ local own_d, own_dv = plan.halved and ", own_d" or "", plan.halved and ", own_dv" or "" -- of which columns a CTA loads its own
@ local load_keys = plan.halved and "load_keys<" or "load_tile<block_n, "
@ local redo_warps = pair and "8 * consumers" or "4 * consumers"
constexpr u32 q_tile = claim_full + 8, q_redo = q_tile + 4 * 2, first_claim = q_redo + 4 * 2 * $(redo_warps);
@ if pair then
// What the first CTA tells the second one to do: four words, as the second may have read the one before the last alone.
constexpr int num_words = 4;
constexpr u32 word_full = first_claim + 8, word_slot = word_full + 8 * num_words;
@ end
@ if plan.halved then
// Three for each warp that computes, for what the other CTA's warp sends: sums of scores, weights, and what rows have in common.
constexpr u32 half_bars = word_slot + 4 * num_words;
@ end
constexpr u32 tile_places = $(layout.tile_places), place_bytes = $(layout.place_bytes); // of the same two
@ if problem.dropout then
constexpr u32 dropout_keys = $(layout.dropout_keys); // of the buffers of Q: the producer has time for them
@ end
constexpr int no_more = -1, flush = -2; // instead of a tile: the end; and a request to give back all buffers of Q
@ local lone = plan.teams > 1 -- of a team one warp loads Q, K and V
@ local scanner = mask.residual and plan.teams <= 2 -- a warp that looks for tiles; of more teams each producer does itself
@ if scanner then
constexpr u32 scan_asked = $(plan.halved and "half_bars + 3 * 8 * 4 * consumers" or "first_claim + 8"), scan_told = scan_asked + 8; // barriers of piece/scanner.cu
@ end
@ if lone then
constexpr int teams = $(plan.teams);
constexpr u32 team_bytes = $(layout.team_bytes);
@ end

// Which of N buffers is next, and the parity of the phase of its barriers; in one register.
template <int N> struct Ring {
    u32 place = 0; // counts the buffers of two phases
    __device__ __forceinline__ u32 index() const { return place % N; }
    __device__ __forceinline__ u32 parity() const { return place / N; }
    __device__ __forceinline__ u32 slot() const { return place % 2; } // of q_tile and q_redo: N is 1 or 2
    __device__ __forceinline__ void next() { place = place + 1 == 2 * N ? 0 : place + 1; }
};

@ if problem.element_bytes == 1 then
// A ring of tiles that products read: besides, the next one's word of a descriptor, which is so known before it is waited for.
template <int N, u32 BYTES> struct Operands : Ring<N> {
    u32 operand;
    __device__ __forceinline__ Operands(u32 first) : operand(first) {}
    __device__ __forceinline__ void next() {
        Ring<N>::next();
        operand += this->index() == 0 ? 0 - (N - 1) * (BYTES / 16) : BYTES / 16;
    }
};

@ end
@ local followers = (lone or latent) and 0 or 1
@ if staged.array then followers = followers + 1 end -- producers of V, and of an array
@ local follows = mask.residual and followers > 0
@ local also = follows and " + " .. followers or ""
@ if staged.array then
@   include("piece/array_tiles.cu", { staged = staged })

@ end
__device__ __forceinline__ void init_barriers(u32 smem) {
    for (int i = 0; i < q_stages; ++i) {
        mbarrier_init(smem + q_full + 8 * i, 1);
@ if lone then
        mbarrier_init(smem + q_empty + 8 * i, 4 * consumers);
@ else
        mbarrier_init(smem + q_empty + 8 * i, $(pair and "(cluster_rank() == 0 ? 2 : 1) * " or "")4 * consumers$(followers > 0 and " + " .. followers or ""));$(followers > 0 and (" // and the producer of V" .. (staged.array and ", and that of the array" or "") .. ", who reads which tile it is") or "")
@ end
    }
    for (int i = 0; i < k_stages; ++i) {
        mbarrier_init(smem + k_full + 8 * i, 1);
        mbarrier_init(smem + k_empty + 8 * i, $(shares and "2 * " or "")4 * consumers$(also));$(follows and " // and the producer of V, who reads its Visit" or "")
    }
@ if not latent then
    for (int i = 0; i < v_stages; ++i) {
        mbarrier_init(smem + v_full + 8 * i, 1);
        mbarrier_init(smem + v_empty + 8 * i, $(shares and "2 * " or "")4 * consumers);
    }
@ end
@ if staged.array then
    init_array_barriers(smem);
@ end
    mbarrier_init(smem + tail_full, 1);
    mbarrier_init(smem + claim_full, 1);
@ if scanner then
    mbarrier_init(smem + scan_asked, 1);
    mbarrier_init(smem + scan_told, 1);
@ end
@ if pair then
    for (int i = 0; i < num_words; ++i) mbarrier_init(smem + word_full + 8 * i, 1);
@ end
@ if plan.halved then
    for (int i = 0; i < 3 * 4 * consumers; ++i) mbarrier_init(smem + half_bars + 8 * i, 1);
@ end
    for (int i = 0; i < 2 * $(redo_warps); ++i) st_shared_u32(smem + q_redo + 4 * i, 0);
    mbarrier_init_fence();
}

@ if mask.unlike then
@   include("piece/order.cu")

@ end
// ---- the producers$((lone or latent) and "" or ": a warp for Q and K, and one for V, so that neither waits for the other's buffers") ----

@ include("piece/load_tile.cu", { shares = shares, latent = latent })
@ local kv_head = problem.gqa and "at.kv_head" or "at.h"
@ local e4m3 = problem.dtype == "e4m3" -- whose values piece/values.cu has brought into tiles, with zeros past the end
@ local descaled = problem.kv_dtype == "e4m3"
@ local bounds = not mask.residual and #mask.upper + #mask.lower > 0
@ include("piece/claimed.cu", { bounds = bounds, e4m3 = e4m3, descaled = descaled, kv_head = kv_head, shares = shares, sparse = sparse, trusts = trusts })

@ local stages_queries, stages_keys = layout.q_row_bytes > 0 and not mask.runs, layout.k_row_bytes > 0
@ if mask.residual then
@   include("piece/scanner.cu", { scanner = scanner })

@ end
@ if stages_queries or stages_keys then
@   include("piece/mask_rows.cu")

@ elseif mask.runs then
constexpr u32 smem_q_rows = $(layout.rows), q_row_bytes = $(layout.q_row_bytes); // of a buffer of Q: its queries' first and last keys

@ end
@ local batch = problem.packed and "0" or "at.b"
@ local k_row = problem.packed and "at.k_offset + " or ""
@ include("piece/followers.cu", { staged = staged, lone = lone, latent = latent, own_d = own_d, e4m3 = e4m3, kv_head = kv_head, k_row = k_row, batch = batch, trusts = trusts, shares = shares, load_keys = load_keys, own_dv = own_dv })
@ if lone then
// The tile that a team begins with.
__device__ __forceinline__ int first_tile(int team) { return blockIdx.x + team * gridDim.x; }

@ end
@ local claimer = plan.teams <= 2 -- whether there is a warp that loads nothing
@ if claimer then
// A first claim is made by a warp of its own: it takes several trips to memory, for which no copy should wait.
__device__ __forceinline__ void claim_first(const Params &p, u32 smem$(lone and ", int team" or "")) {
    if (threadIdx.x % 32 != 0) return;
@ if lone then
    const bool claims = first_tile(team) < p.num_tiles; // who has no tile to begin with claims none
    if (claims) open_claims(p);
    st_shared_u32(smem + first_claim, claims ? Claims(p).next(p) : p.num_tiles);
@ else
    open_claims(p);
    st_shared_u32(smem + first_claim, Claims(p).next(p));
@ end
    mbarrier_arrive(smem + claim_full);
}

@ end
struct Producer {
    const Params &p;
    const u32 smem;
    const bool leader = threadIdx.x % 32 == 0;
    Ring<q_stages> q;
    Ring<k_stages> k;
    Claims claims;
    int redo = no_more; // the chain of tiles to be computed once more: the first one's word
@ if pair then
    Ring<num_words> words;
@ end
@ if lone then
    const int team;
@ end
@ if lone or latent then
    Values values;
@ end
@ if scanner then
    int row, upcoming = no_more; // what the scanner was asked about last, and what it is to be asked about next
    bool more = false;           // whether it was asked for what follows its last answer
    u32 scan_parity = 0;
@ elseif mask.residual then
    bool more = false; // whether there may be tiles to visit below those that were looked at
@ end

    __device__ __forceinline__ Producer(const Params &p_, u32 smem_$(lone and ", int team_" or "")) : p(p_), smem(smem_), claims(p_)$(lone and ", team(team_)" or "")$((lone or latent) and ", values(p_, smem_)" or "") {}

    // Waits until the buffer of Q is free, by when the tile before the last is done; chains that if it must be computed once more.
    __device__ __forceinline__ void acquire_q(const Ring<q_stages> &ring) {
@ if pair then
        cluster_wait(smem + q_empty + 8 * ring.index(), ring.parity() ^ 1);
        if (cluster_rank() != 0) return; // the first CTA is told of all rows, and chains tiles
@ else
        mbarrier_wait(smem + q_empty + 8 * ring.index(), ring.parity() ^ 1);
@ end
        const u32 flag = smem + q_redo + (ring.slot() * $(redo_warps) + threadIdx.x % 32) * 4;
        const bool set = threadIdx.x % 32 < $(redo_warps) && ld_shared_u32(flag);
        if (!__any_sync(full_warp, set)) return;
        const int word = ld_shared_u32(smem + q_tile + 4 * ring.slot());
        if (set) st_shared_u32(flag, 0);
        if (leader) next_redo(p, $(trusts and "word >= 0 ? word : redone_tile(word)" or "word")) = redo;
        __syncwarp();
        redo = redo_word(word);
    }

@ if pair then
    // Both CTAs of the cluster do what the first one says, and that once its own queries have room: the warps of the second one give
    // back buffers of both, and may be done with a short tile while the first CTA still reads the buffer's last one.
    __device__ __forceinline__ void tell(int word) {
        if (leader) {
            cluster_store_u32(cluster_map(smem + word_slot + 4 * words.index(), 1), word);
            cluster_publish(cluster_map(smem + word_full + 8 * words.index(), 1));
        }
        words.next();
    }

@ end
    // Sends what the consumers are to do: a tile's queries, or a word alone where `at` is none.
    __device__ __forceinline__ void send_q(const Where &at, int word) {
@ if problem.dropout then
        const uint4 key = dropout_key(p, at.b, at.h);
@ end
@ if descaled then
        const float scale = at.b >= 0 ? scale_of(p, at) : 0.0f;
@ end
@ if mask.runs then
        Ranges ranges; // of what lies in memory: before the wait
        if (at.b >= 0) ranges = Ranges(p, at, is_careful(word));
@ end
        acquire_q(q);
@ if pair then
        if (cluster_rank() == 0) tell(word);
@ end
@ if problem.dropout then
        if (leader) st_shared_v4(smem + dropout_keys + 16 * q.index(), key);
@ end
@ if stages_queries then
        if (at.b >= 0) {
            QueryRows rows; // read here: registers are scarce, and queries are sent long before they are needed
            rows.read(p, at);
            rows.write(smem + smem_q_rows + q.index() * q_row_bytes);
        }
@ end
@ if mask.runs then
        if (at.b >= 0) ranges.write(tile_place(smem, q));
@ elseif bounds then
        if (at.b >= 0) Ranges(p, at, is_careful(word)).write(tile_place(smem, q));
@ end
@ if stages_queries or problem.dropout or bounds then
        __syncwarp();
@ end
        if (elect_lane()) {
            const u32 bar = smem + q_full + 8 * q.index();
            st_shared_u32(smem + q_tile + 4 * q.slot(), word);
            if (at.b >= 0) {
                write_place(tile_place(smem, q), at);
@ if descaled then
                st_shared_u32(tile_place(smem, q) + tile_scale, __float_as_uint(scale));
@ end
                mbarrier_arrive_expect_tx(bar, block_m * $(layout.d_cols * problem.element_bytes)$(mask.runs and " + q_row_bytes" or ""));
@ if mask.runs then
                const u32 rows = smem + smem_q_rows + q.index() * q_row_bytes;
                bulk_load(rows, p.runs + run_at(p, at.b, at.q_first), block_m * 4, bar);
                bulk_load(rows + block_m * 4, p.runs + run_at(p, p.batch + at.b, at.q_first), block_m * 4, bar);
@ end
                load_tile<block_m, $(layout.d_cols)$(own_d)>(smem + smem_q + q.index() * q_bytes, p.map_q, bar,
                                        $(problem.packed and "at.q_offset + " or "")at.q_first$(shares and " + int(cluster_rank()) * block_m" or ""), at.h, $(batch));
            } else {
                mbarrier_arrive(bar);
            }
        }
        q.next();
    }

@ if mask.residual then
@   include("piece/scanned_keys.cu", { k_row = k_row, kv_head = kv_head, k_batch = batch, stages_keys = stages_keys, scanner = scanner, load_keys = load_keys, own_d = own_d, latent = latent })
@ else
@   local sends_late = late and plan.q_stages == 2
    // Sends the keys that a tile visits. In between calls `between`, once: $(sends_late and "when few are left" or "when the first ones have found room").$(late and " Where few are left, `ask`." or "")
    template <class $(late and "Ask, class " or "")Between> __device__ __forceinline__ void send_k(const Where &at, $(late and "const Ask &ask, " or "")const Between &between) {
        int to_go = $(plan.q_stages == 1 and 1 or "k_stages");
@   if late then
        bool asked = false$(sends_late and ", called = false" or "");
@   end
        TileWalk walk;
        if (at.b >= 0) walk = $(mask.runs and plan.q_stages == 2 and "written_walk(smem + tile_places + place_bytes * (q.slot() ^ 1))" or "TileWalk(p, at)");
        for (;; walk.next(p, at)) {
@   if late then
            const int left = walk.n < 0 ? 0 : walk.n + 1 - walk.tiles.begin;
            if (!asked && left <= k_stages + 2) ask(), asked = true;
@   end
@   if sends_late then
            if (!called && (left == 0 || (to_go <= 0 && left <= k_stages))) between(), called = true;
@   else
            if (to_go == 0 || (to_go > 0 && walk.n < 0)) between();
@   end
            if (walk.n < 0) break;
            --to_go;
@   if problem.paged then
            const PagedRows rows(p, at, walk.n);
@   end
@   if latent then
@   elseif problem.paged then
            mbarrier_wait(smem + k_empty + 8 * k.index(), k.parity() ^ 1);
            rows.load<$(layout.d_cols)$(own_d)>(smem + smem_k + k.index() * k_bytes, p.map_k, smem + k_full + 8 * k.index(), $(kv_head));
@   else
            mbarrier_wait(smem + k_empty + 8 * k.index(), k.parity() ^ 1);
            if (elect_lane()) {
                const u32 bar = smem + k_full + 8 * k.index();
                mbarrier_arrive_expect_tx(bar, k_bytes);
                $(shares and "load_shared_tile<block_n, " .. layout.d_cols .. ", 0>" or load_keys .. layout.d_cols .. own_d .. ">")(smem + smem_k + k.index() * k_bytes, p.map_k, bar, $(k_row)tile_key(at, walk.n), $(kv_head), $(batch));
            }
@   end
@   if lone or latent then
            values.send(at, walk.n$(problem.paged and not e4m3 and ", rows" or ""));
@   end
            k.next();
        }
    }
@ end

@ if claimer then
    __device__ __forceinline__ int claimed_first() const {
        mbarrier_wait(smem + claim_full, 0);
        return ld_shared_u32(smem + first_claim);
    }
@ else
    // For the leader, who claims while its team has a tile to begin with; who has none claims none.
    __device__ __forceinline__ int claimed_first() const {
        if (!leader || first_tile(team) >= p.num_tiles) return p.num_tiles;
        open_claims(p);
        return claims.next(p);
    }
@ end

@ if pair then
    __device__ __forceinline__ int told(int &word) {
        cluster_wait(smem + word_full + 8 * words.index(), words.parity());
        word = warp_word(smem + word_slot + 4 * words.index());
        words.next();
        return word >= 0 ? word : is_redo(word) ? $(trusts and "redone_tile(word)" or "flush - 1 - word") : -1;
    }

@ end
    // The word after `word`, and its tile: tiles as long as there are any, then `flush`, those to be computed once more, `no_more`.
    // There is one place that sends, for all of them: the kernel's text is what compiling takes its time for.
    __device__ __forceinline__ Where follow(int &word, int claimed) {
        int tile = -1;
@ if pair then
        if (cluster_rank() != 0) {
            tile = told(word);
        } else
@ end
        if (word >= 0) {
            word = tile = claimed;
            if (tile >= p.num_tiles) word = flush, tile = -1;
@ if mask.leading > 0 and not problem.packed or mask.unlike then
            if (tile >= 0) word = tile = in_turn(p, tile);
@ end
        } else {
            Ring<q_stages> rest = q;
            for (int i = 0; word == flush && i < q_stages; ++i, rest.next()) acquire_q(rest);
            word = redo != no_more ? redo : $(trusts and "is_redo(word) ? flush : " or "")no_more;
            if (redo != no_more) tile = redone_tile(redo), redo = next_redo(p, tile);
        }
        Where at;
        at.b = -1;
        if (tile >= 0) at = tile_at(p, tile);
        return at;
    }

    __device__ __forceinline__ bool claims_more(int word) const { return word >= 0 && leader$(pair and " && cluster_rank() == 0" or ""); }
    // The tile of what the leader claimed; in turn 0 its own.
    __device__ __forceinline__ int given_tile(int &next, int turn) {
        if (turn > 0 && leader) next = claims.tile(p, next);
        return __shfl_sync(full_warp, next, 0);
    }

    __device__ __forceinline__ void run() {
        if (leader) {
            tma_prefetch_map(&p.map_q);
            tma_prefetch_map(&p.map_k);
        }
@ if mask.runs then
        wait_for_previous(); // who wrote the runs
@ elseif mask.words then
        wait_for_previous(); // who looked up what tiles hold
@ elseif plan.widens_before or e4m3 then
        wait_for_previous(); // who wrote keys and values, or values
@ end
        int word = 0, next = $(lone and "first_tile(team)" or pair and "int(blockIdx.x) / 2" or "int(blockIdx.x)"); // and then what was claimed
@ if plan.q_stages == 1 and not mask.residual then
        // The queries have room when the consumers have all scores of the tile before; until then the first keys come.
        for (int turn = 0;; ++turn) {
            const Where at = follow(word, given_tile(next, turn));
@   if latent and trusts then
            values.clean = is_redo(word);
@   end
@   if not late then
            if (claims_more(word) && turn > 0) next = claims.next(p); // arrives while copies are issued
@   end
            send_k(at, $(late and "[&] { if (claims_more(word) && turn > 0) next = claims.next(p); }, " or "")[&] {
                if (at.b >= 0 || word < 0) send_q(at, word);
            });
            if (word == no_more) return;
            if (turn == 0$(pair and " && cluster_rank() == 0" or "")) next = claimed_first();
        }
@ else
@   local sent = sparse and "sent" or "word"
@   if reads then
        bool any = false; // whether there is a tile at hand
@   else
        Where at;
        at.b = -1;
@   end
@   if sparse then
        int sent = 0; // the word, as the others are told it
@   end
        for (int turn = 0;; ++turn) { // in turn 0 there is no tile at hand
@   if reads then
            Where at;
            at.b = -1;
            if (any) {
                Ring<q_stages> before = q;
                before.place ^= 1;
                at = claimed(p, smem, before);
            }
@   end
@   if not mask.residual and not late then
            if (claims_more(word) && turn > 1) next = claims.next(p); // arrives while copies are issued
@   end
            Where at_next;
@   if (lone or latent) and trusts then
            values.clean = is_redo($(sent));
@   end
            send_k(at, $(mask.residual and "is_careful(" .. sent .. "), " or late and "[&] { if (claims_more(word) && turn > 1) next = claims.next(p); }, " or "")[&] {
@   if plan.q_stages == 1 then
                // Queries have room when the consumers have all scores of the tile before; until then the first keys come.
                if (turn > 0 && (at.b >= 0 || word < 0)) send_q(at, $(sent));
@   end
@   if plan.halved then -- the second CTA would wait for word of the next tile, while the first one waits for scores of this one
            });
            {
@   end
                if (turn == 1$(pair and " && cluster_rank() == 0" or "")) next = claimed_first();
@   if mask.residual then
                if (claims_more(word) && turn > 1) next = claims.next(p);
@   end
                at_next = follow(word, given_tile(next, turn));
@   if sparse then
                sent = said(p, at_next, word);
@   end
@   if scanner then
                if (at_next.b >= 0) ask($(sent));
@   end
@   if plan.q_stages == 2 then
                if (at_next.b >= 0 || word < 0) send_q(at_next, $(sent));
@   end
@   if plan.halved then
            }
@   else
            });
@   end
            if (word == no_more) {
@   if scanner then
                ask(no_more, 0);
@   end
@   if plan.q_stages == 1 then
                send_q(at_next, word);
@   end
                return;
            }
@   if reads then
            any = at_next.b >= 0;
            __syncwarp(); // one lane wrote its place
@   else
            at = at_next;
@   end
        }
@ end
    }
};
