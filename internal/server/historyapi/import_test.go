package historyapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onsi/gomega"
)

// How fast a body comes is up to the caller: until it is there, nothing of the
// history store is held, and no other namespace waits.
func TestAnImportIsReadBeforeItIsStored(t *testing.T) {
	g := gomega.NewWithT(t)
	f := quiet(t)
	f.archive.lines = someLines()
	exported := f.ask(http.MethodGet, base+"/taskhistories/a/export", "").Body.String()

	body, slow := io.Pipe()
	answered := make(chan int, 1)
	go func() {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, base+"/taskhistories", body)
		r.Header.Set("X-User", "ann")
		w := httptest.NewRecorder()
		f.mux.ServeHTTP(w, r)
		answered <- w.Code
	}()
	half := len(exported) / 2
	_, err := io.WriteString(slow, exported[:half])
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(f.archive.imports.Load()).To(gomega.BeZero(), "the import began before its body was there")
	_, err = io.WriteString(slow, exported[half:])
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(slow.Close()).To(gomega.Succeed())
	g.Eventually(answered, "20s").Should(gomega.Receive(gomega.Equal(http.StatusCreated)))
	g.Expect(f.archive.imports.Load()).To(gomega.BeEquivalentTo(1))
}

// A Task that is there writes its history itself. Whoever brought one of its UID before
// it began would give it a past, or take its place in the history of all namespaces.
func TestNoImportTakesThePlaceOfATaskThatIsThere(t *testing.T) {
	imported := func(kind, body string) string {
		return `{"kind":"` + kind + `","body":` + body + "}\n"
	}
	for name, test := range map[string]struct {
		body string
		code int
		says string
	}{
		"a Task of the namespace or of another": {imported("task", `{"name":"c","uid":"live"}`), http.StatusConflict, "there is a Task with the UID live"},
		"behind empty lines":                    {"\n\n" + imported("task", `{"name":"c","uid":"live"}`), http.StatusConflict, "there is a Task"},
		"the UID said twice":                    {imported("task", `{"uid":"gone","UID":"live"}`), http.StatusConflict, "there is a Task"},
		"a Task that is gone":                   {imported("task", `{"name":"c","uid":"gone"}`), http.StatusCreated, ""},
		"nobody knows":                          {imported("task", `{"name":"c","uid":"unknown"}`), http.StatusServiceUnavailable, "try again"},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			f := quiet(t)
			f.tasks["not begun"] = "live"
			w := f.ask(http.MethodPost, base+"/taskhistories", test.body)
			g.Expect(w.Code).To(gomega.Equal(test.code), w.Body.String())
			g.Expect(w.Body.String()).To(gomega.ContainSubstring(test.says))
			g.Expect(f.archive.imports.Load() == 1).To(gomega.Equal(test.code == http.StatusCreated))
		})
	}
}

// What is asked is held by more than the request: one that is no UID is not asked.
func TestNoTaskIsLookedForByWhatIsNoUID(t *testing.T) {
	for name, test := range map[string]struct {
		uid  string
		code int
		says string
	}{
		"as long as they may be": {strings.Repeat("u", 64), http.StatusCreated, ""},
		"longer":                 {strings.Repeat("u", 65), http.StatusBadRequest, "longer than 64 bytes"},
		"with a NUL":             {`unknown\u0000`, http.StatusBadRequest, "characters that no UID has"},
		"none":                   {"", http.StatusCreated, ""}, // the store refuses it
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			f := quiet(t)
			w := f.ask(http.MethodPost, base+"/taskhistories", `{"kind":"task","body":{"name":"c","uid":"`+test.uid+`"}}`+"\n")
			g.Expect(w.Code).To(gomega.Equal(test.code), w.Body.String())
			g.Expect(w.Body.String()).To(gomega.ContainSubstring(test.says))
			g.Expect(f.archive.imports.Load() == 1).To(gomega.Equal(test.code == http.StatusCreated))
		})
	}
}

func TestAnImportHasItsLimits(t *testing.T) {
	g := gomega.NewWithT(t)
	f := quiet(t)
	w := f.ask(http.MethodPost, base+"/taskhistories", strings.Repeat(" ", testImportBytes+1))
	g.Expect(w.Code).To(gomega.Equal(http.StatusRequestEntityTooLarge))
	g.Expect(w.Body.String()).To(gomega.ContainSubstring("max-import-bytes"))
	g.Expect(f.archive.imports.Load()).To(gomega.BeZero())
}
