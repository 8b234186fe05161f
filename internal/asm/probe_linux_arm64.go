package asm

import "golang.org/x/sys/unix"

// From Linux' arch/arm64/include/uapi/asm/hwcap.h and include/uapi/linux/auxvec.h.
const (
	atHWCAP  = 16
	atHWCAP2 = 26

	hwcapEVTSTRM = 1 << 2
	hwcap2WFXT   = 1 << 31
)

// probe reads the auxiliary vector: the kernel's word for what every processor
// of the machine can do. (/proc/cpuinfo under an emulator is the host's.)
func (f *features) probe() {
	auxv, err := unix.Auxv()
	if err != nil {
		f.absent[WFET] = "no auxiliary vector: " + err.Error()
		f.absent[WFE] = f.absent[WFET]
		return
	}
	var hwcap, hwcap2 uintptr
	for _, kv := range auxv {
		switch kv[0] {
		case atHWCAP:
			hwcap = kv[1]
		case atHWCAP2:
			hwcap2 = kv[1]
		}
	}
	f.absent[WFET] = "HWCAP2 bit 31 (WFXT) is clear: no FEAT_WFxT, or a kernel before 5.19"
	if hwcap2&hwcap2WFXT != 0 {
		f.absent[WFET] = ""
	}
	f.absent[WFE] = "HWCAP bit 2 (EVTSTRM) is clear: no event stream would bound wfe"
	if hwcap&hwcapEVTSTRM != 0 {
		f.absent[WFE] = ""
	}
	if f.absent[WFET] == "" || f.absent[WFE] == "" {
		// ERG is the log2 of the exclusive monitor's granule in 4-byte words, 0
		// where it is not told.
		if erg := ctr() >> 20 & 0xf; erg != 0 {
			f.granule = 4 << erg
		}
	}
}
