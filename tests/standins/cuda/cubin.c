/* Reads of a cubin what a driver reads: its length, architecture, and the parameters and block size of a kernel. */
#include "standin.h"
#include <elf.h>

static const Elf64_Shdr *section(const Elf64_Ehdr *elf, int index) {
    return (const Elf64_Shdr *)((const char *)elf + elf->e_shoff + (size_t)index * elf->e_shentsize);
}

CUresult cubin_read(const void *image, Cubin *out) {
    const Elf64_Ehdr *elf = image;
    if (memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_machine != EM_CUDA) return CUDA_ERROR_INVALID_IMAGE;
    out->bytes = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
    for (int i = 0; i < elf->e_shnum; i++) {
        const Elf64_Shdr *s = section(elf, i);
        if (s->sh_type != SHT_NOBITS && s->sh_offset + s->sh_size > out->bytes) out->bytes = s->sh_offset + s->sh_size;
    }
    size_t segments = elf->e_phoff + (size_t)elf->e_phnum * elf->e_phentsize;
    if (segments > out->bytes) out->bytes = segments;
    /* The architecture is the low byte of the flags, in binaries of CUDA 13's assembler the byte above it. */
    out->architecture = elf->e_ident[EI_ABIVERSION] >= 8 ? (elf->e_flags >> 8) & 0xff : elf->e_flags & 0xff;
    out->hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < out->bytes; i++) out->hash = (out->hash ^ ((const unsigned char *)image)[i]) * 1099511628211u;
    return CUDA_SUCCESS;
}

CUresult cubin_kernel(const void *image, const char *name, CUfunction out) {
    const Elf64_Ehdr *elf = image;
    const char *names = (const char *)image + section(elf, elf->e_shstrndx)->sh_offset;
    for (int i = 0; i < elf->e_shnum; i++) {
        const Elf64_Shdr *s = section(elf, i);
        const char *title = names + s->sh_name;
        if (strncmp(title, ".nv.info.", 9) || strcmp(title + 9, name)) continue;
        const unsigned char *at = (const unsigned char *)image + s->sh_offset, *end = at + s->sh_size;
        while (at < end) {
            unsigned form = at[0], attribute = at[1], value = at[2] | at[3] << 8;
            const uint32_t *data = (const uint32_t *)(at += 4);
            if (form != 4) continue;
            if (attribute == 0x17) { /* a parameter: index, ordinal and offset, size from bit 18 on */
                unsigned ordinal = data[1] & 0xffff;
                if (ordinal >= MAX_PARAMETERS) return CUDA_ERROR_INVALID_IMAGE;
                out->parameters[ordinal] = (Parameter){data[1] >> 16, data[2] >> 18};
                if ((int)ordinal >= out->count) out->count = (int)ordinal + 1;
            }
            if (attribute == 0x10) out->threads = data[0];
            at += value;
        }
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}
