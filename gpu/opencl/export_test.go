package opencl

// Streams returns how many streams are open, and how many are closed but still
// held because their work was under way when last looked at.
func (d *Device) Streams() (open, closing int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.live), len(d.closing)
}
