package plan

import "testing"

func TestFieldSetting(t *testing.T) {
	const text = "block;rows>=32:flag:park_us=100,backstop_us=1000+predict:margin_us=150,min_sleep_us=20,max_sleep_us=50000,window=8"
	b, err := ParseBands(text)
	if err != nil || b.String() != text {
		t.Fatal(b, err)
	}
	t.Log(Default(Caps{}), b.Resolve(Caps{}))
	_, err = ParseBands("block;rows>=32:poll+predict:margin_us=1")
	t.Log(err)
}
