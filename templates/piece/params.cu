struct Params {
@ for _, field in ipairs(params) do
    $(field.type) $(field.name);
@ end
};
