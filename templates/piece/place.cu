// Where a CTA is in the grid. A kernel's end asks once more, by anew(), and works out its tile again, rather than that the loop, which
// has no registers to spare, keeps it.
struct Place {
    int x = blockIdx.x, y = blockIdx.y, z = blockIdx.z;
};

__device__ __forceinline__ Place anew() {
    Place place;
    place.x = opaque(place.x), place.y = opaque(place.y), place.z = opaque(place.z);
    return place;
}
