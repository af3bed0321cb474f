"""The scale benchmark runs, and each of its charts shows every point.

    plot_test.py ATTNSERVE_BENCH
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SVG = "{http://www.w3.org/2000/svg}"


class PlotTest(unittest.TestCase):

    def test_every_point_is_drawn_within_the_page(self):
        plot = pathlib.Path(__file__).with_name("plot.py")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            source = folder / "scale.json"
            subprocess.run([BENCH, "scale", "--quick", "--json", source], check=True)
            subprocess.run([sys.executable, "-B", plot, source, folder], check=True)
            charts = json.loads(source.read_text())["charts"]
            self.assertEqual(sorted(charts), ["context", "memory", "sessions"])
            for chart, curves in charts.items():
                root = xml.etree.ElementTree.parse(folder / f"scale_{chart}.svg").getroot()
                circles = root.findall(f"{SVG}circle")
                self.assertEqual(len(circles), sum(map(len, curves.values())))
                for circle in circles:
                    self.assertTrue(0 < float(circle.get("cx")) < float(root.get("width")))
                    self.assertTrue(0 < float(circle.get("cy")) < float(root.get("height")))
                names = {text.text for text in root.findall(f"{SVG}text")}
                self.assertLessEqual(set(curves), names)


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
