// A kernel may start while the one before still runs: as soon as all its blocks have called start_next, or ended.
__device__ __forceinline__ void start_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the kernel before has ended, and all that it wrote is there.
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Adds 1, behind all that the thread has done or seen.
__device__ __forceinline__ void red_release_inc(u32 *p) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

// Of memory that a kernel before may have written a moment ago, and that is not read again.
__device__ __forceinline__ uint4 ld_global_last_v4(const void *p) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
