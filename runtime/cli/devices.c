/* devices: the GPUs that can be planned for, and those on this machine. */
#include "cli.h"

static const table_column columns[] = {
    {"key", "key", false},
    {"name", "name", false},
    {"sm", "sm", true},
    {"SMs", "num_sms", true},
    {"SRAM/block", "smem_per_block", true},
    {"SRAM/SM", "smem_per_sm", true},
    {"L2", "l2_bytes", true},
    {"HBM GB/s", "hbm_gbps", true},
    {"GHz", "clock_ghz", true},
    {"16-bit TFLOP/s", "mma_tflops", true},
    {"here", "ordinal", false},
};

static void add_device(table *t, const fk_device_info *d) {
    char text[CLI_QUANTITY];
    const double tflops = d->mma_flops * d->num_sms * d->clock_ghz * 1e-3;
    table_text(t, d->key[0] ? d->key : "-");
    table_text(t, d->name);
    table_number(t, d->sm, "%d", d->sm);
    table_number(t, d->num_sms, "%d", d->num_sms);
    table_number(t, d->smem_per_block, "%s", cli_bytes(d->smem_per_block, text));
    table_number(t, d->smem_per_sm, "%s", cli_bytes(d->smem_per_sm, text));
    table_number(t, (double)d->l2_bytes, "%s", cli_bytes((double)d->l2_bytes, text));
    table_number(t, d->hbm_gbps, "%.0f", d->hbm_gbps);
    table_number(t, d->clock_ghz, "%.2f", d->clock_ghz);
    table_number(t, tflops, "%.0f", tflops);
    if (d->ordinal >= 0)
        table_number(t, d->ordinal, "cuda:%d", d->ordinal);
    else
        table_number(t, -1, "-");
}

static cli_exit devices_main(const cli_verb *verb, int argc, char **argv) {
    bool json = false;
    const option options[] = {cli_json_option(&json)};
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, 1, &argc, argv, &code)) return code;
    if (argc > 0) return cli_fail(CLI_USAGE, "devices: takes no argument, \"%s\" was given", argv[0]);

    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    const int present = fk_device_present_count();
    fk_device_info d;
    for (int i = 0; i < present; i++) {
        char name[32];
        snprintf(name, sizeof name, "cuda:%d", i);
        if (fk_device_find(name, &d) == FK_OK) add_device(t, &d);
    }
    for (size_t i = 0; i < fk_device_table_size(); i++)
        if (fk_device_table(i, &d) == FK_OK) add_device(t, &d);
    const bool good = json ? table_print_json(t, stdout) : table_print(t, stdout);
    table_destroy(t);
    if (!good) return cli_fail_print("devices");
    if (!json)
        printf("\n%d GPU%s on this machine; --device emu runs every kernel on the CPU. TFLOP/s: mma.sync, fp32 "
               "accumulation.\n",
               present, present == 1 ? "" : "s");
    return CLI_OK;
}

const cli_verb verb_devices = {"devices", "[--json]", "known GPUs, and those on this machine", "", devices_main};
