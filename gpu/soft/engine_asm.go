//go:build linux && amd64

package soft

const haveAsmEngine = true

func startAsm(m *memory, bell int, process bool) (engine, error) {
	e, err := startAsmEngine(m, bell, process)
	if err != nil {
		return nil, err
	}
	return e, nil
}
