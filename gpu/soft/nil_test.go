package soft

import "testing"

// A nil device or stream is answered, not dereferenced.
func TestNilDriverContract(t *testing.T) {
	var d *Device
	for name, f := range map[string]func(){
		"Info": func() { d.Info() }, "Caps": func() { d.Caps() }, "Close": func() { d.Close() }, "Retain": func() { d.Retain() }, "Release": func() { d.Release() },
		"AllocHost": func() { d.AllocHost(1) }, "FreeHost": func() { d.FreeHost(1) }, "DeviceAddr": func() { d.DeviceAddr(1) }, "Settle": func() { d.Settle() },
		"Status": func() { d.Status() }, "NewStream": func() { d.NewStream() }, "Adopt": func() { d.AdoptStream(1) }, "Alloc": func() { d.Alloc(1) }, "Free": func() { d.Free(1) },
		"Counters": func() { d.Counters() }, "Lose": func() { d.Lose("") },
	} {
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("%s: %v", name, p)
				}
			}()
			f()
		}()
	}
	var s *Stream
	for name, f := range map[string]func(){
		"Device": func() { s.Device() }, "Handle": func() { s.Handle() }, "Query": func() { s.Query() }, "Sync": func() { s.Sync() }, "Close": func() { s.Close() }, "Store": func() { s.Store(1, 1, 1) },
		"Work": func() { s.Work(1) }, "Record": func() { s.Record() }, "Capturing": func() { s.Capturing() },
	} {
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("stream %s: %v", name, p)
				}
			}()
			f()
		}()
	}
}
