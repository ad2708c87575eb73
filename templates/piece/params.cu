@ if #arrays > 0 then
struct Array {
    const void *data;
    i64 stride[4]; // in elements; the last one of an array fits an int
    int size[4];
};

@ end
struct Params {
@ for _, field in ipairs(params) do
    $(field.type) $(field.name);
@ end
};
