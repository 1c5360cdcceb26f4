package historyapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("Importing a history over the API", func() {
	// The caller decides how fast a body arrives: until then, it holds nothing of the
	// history store, and no other namespace waits.
	It("an import is read before it is stored", func() {
		t := GinkgoTB()
		f := quiet(t)
		f.archive.lines = someLines()
		exported := f.ask(http.MethodGet, base+"/taskhistories/a/export", "").Body.String()

		body, slow := io.Pipe()
		answered := make(chan int, 1)
		go func() {
			defer GinkgoRecover()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, base+"/taskhistories", body)
			r.Header.Set("X-User", "ann")
			w := httptest.NewRecorder()
			f.mux.ServeHTTP(w, r)
			answered <- w.Code
		}()
		half := len(exported) / 2
		_, err := io.WriteString(slow, exported[:half])
		Expect(err).NotTo(HaveOccurred())
		Expect(f.archive.imports.Load()).To(BeZero(), "the import began before its body was there")
		_, err = io.WriteString(slow, exported[half:])
		Expect(err).NotTo(HaveOccurred())
		Expect(slow.Close()).To(Succeed())
		Eventually(answered, "20s").Should(Receive(Equal(http.StatusCreated)))
		Expect(f.archive.imports.Load()).To(BeEquivalentTo(1))
	})

	// An existing Task writes its history itself. Whoever imported a history with its UID
	// before it began would give it a past, or take its place in the history of all
	// namespaces.
	It("no import takes the place of an existing task", func() {
		t := GinkgoTB()
		imported := func(kind, body string) string {
			return `{"kind":"` + kind + `","body":` + body + "}\n"
		}
		for name, test := range map[string]struct {
			body string
			code int
			says string
		}{
			"a Task of the namespace or of another": {imported("task", `{"name":"c","uid":"live"}`), http.StatusConflict, "a Task with the UID live exists"},
			"behind empty lines":                    {"\n\n" + imported("task", `{"name":"c","uid":"live"}`), http.StatusConflict, "a Task with the UID live exists"},
			"the UID said twice":                    {imported("task", `{"uid":"gone","UID":"live"}`), http.StatusConflict, "a Task with the UID live exists"},
			"a Task that is gone":                   {imported("task", `{"name":"c","uid":"gone"}`), http.StatusCreated, ""},
			"nobody knows":                          {imported("task", `{"name":"c","uid":"unknown"}`), http.StatusServiceUnavailable, "try again"},
		} {
			By(name, func() {
				f := quiet(t)
				f.tasks["not begun"] = "live"
				w := f.ask(http.MethodPost, base+"/taskhistories", test.body)
				Expect(w.Code).To(Equal(test.code), w.Body.String())
				Expect(w.Body.String()).To(ContainSubstring(test.says))
				Expect(f.archive.imports.Load() == 1).To(Equal(test.code == http.StatusCreated))
			})
		}
	})

	// A scan for a UID is held by more than the request, so an invalid UID is not looked
	// up.
	It("no task is looked up by an invalid UID", func() {
		t := GinkgoTB()
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
			By(name, func() {
				f := quiet(t)
				w := f.ask(http.MethodPost, base+"/taskhistories", `{"kind":"task","body":{"name":"c","uid":"`+test.uid+`"}}`+"\n")
				Expect(w.Code).To(Equal(test.code), w.Body.String())
				Expect(w.Body.String()).To(ContainSubstring(test.says))
				Expect(f.archive.imports.Load() == 1).To(Equal(test.code == http.StatusCreated))
			})
		}
	})

	It("an import has its limits", func() {
		t := GinkgoTB()
		f := quiet(t)
		w := f.ask(http.MethodPost, base+"/taskhistories", strings.Repeat(" ", testImportBytes+1))
		Expect(w.Code).To(Equal(http.StatusRequestEntityTooLarge))
		Expect(w.Body.String()).To(ContainSubstring("max-import-bytes"))
		Expect(f.archive.imports.Load()).To(BeZero())
	})
})
